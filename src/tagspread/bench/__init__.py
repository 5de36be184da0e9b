"""The paper's tables and figures from one command."""
