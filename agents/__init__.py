"""Agents that learn which bit width to use: Stable-Baselines3 algorithms and MQGrad's own SARSA."""
