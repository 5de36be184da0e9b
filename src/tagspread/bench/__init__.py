"""The paper's tables and charts from one command."""
