"""What each aggregate is: its columns and their types, and how records become partials, partials merge, and results
come out of partials. Each kind of aggregate is one object, found by its name in `registry`."""
