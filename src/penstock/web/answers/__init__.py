"""What is answered, as pure functions of documents."""
