"""Speed, measured on the machine at hand and told in ratio to its raw limits. `make bench` runs it."""
