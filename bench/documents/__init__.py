"""In: records. Out: the tables and pictures of the documents."""
