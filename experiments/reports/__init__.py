"""The report of a comparison: its arithmetic, tables, figures and pages."""
