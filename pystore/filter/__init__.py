"""What a consumer asks for: expressions of tags, and SQL92."""
