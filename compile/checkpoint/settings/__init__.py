"""The JSON files of a checkpoint come in; its configuration, kind, rules for texts and special ids go out."""
