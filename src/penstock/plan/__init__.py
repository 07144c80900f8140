"""From what the user wrote to what runs where. Pure, like the core."""
