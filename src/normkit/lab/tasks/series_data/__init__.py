"""From a CSV or Parquet file to numbers in time order; what cannot be read in one way is refused."""
