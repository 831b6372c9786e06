"""Pictures of records."""
