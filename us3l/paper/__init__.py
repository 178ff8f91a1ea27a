"""The paper's tables as data, and the settings behind their rows."""
