"""PPO of Stable-Baselines3, whose policy builds its optimizer; it learns to balance a pole."""

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

agent = PPO("MlpPolicy", "CartPole-v1", n_steps=256, batch_size=128, device="cpu")
agent.learn(total_timesteps=8_192)
reward, _ = evaluate_policy(agent, gymnasium.make("CartPole-v1"), n_eval_episodes=10)
print(f"held-out reward: {reward:.1f}")
