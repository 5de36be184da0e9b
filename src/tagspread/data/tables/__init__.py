"""Label tables: read image labels from CSV, Parquet, JSON lines, data frames and Label Studio exports."""
