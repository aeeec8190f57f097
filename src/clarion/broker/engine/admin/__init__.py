"""What an administrator asks for."""
