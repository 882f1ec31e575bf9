"""What is measured side by side: peers with processes of their own, and limits."""
