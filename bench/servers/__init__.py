"""In: a bundle that `specserve` serves. Out: what becomes of many clients, and of requests that were made to hurt."""
