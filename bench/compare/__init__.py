"""In: two records of one measurement. Out: which figures moved beyond noise."""
