#!/usr/bin/env bash
# Copies the small cuts of public event data that the examples, the demo and the tests run on.
#
#   examples/data/make.sh DIR      DIR is a folder with the full sets: flights/, retail/, expected/
#
# Sources (README.md beside this script has licences and meanings):
#   flights_2001-01-01_14.csv.gz   US Bureau of Transportation Statistics, as packaged in vega-datasets 3.2.1 (npm)
#   online_retail_2011-05.csv.gz   "Online Retail", UCI Machine Learning Repository (D. Chen, CC BY 4.0): the rows
#                                  before 2011-06-01, header and order kept
#   expected/*                     answers computed from these sets by a plain program
set -euo pipefail
from=${1:?usage: examples/data/make.sh DIR}
to=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$to/expected"
cp "$from/flights/flights_2001-01-01_14.csv.gz" "$to/"
gzip -dc "$from/retail/online_retail.csv.gz" | python3 -c '
import csv, sys
lines = sys.stdin.buffer.read().split(b"\n")
sys.stdout.buffer.write(lines[0] + b"\n")
for line in lines[1:]:
    if line and next(csv.reader([line.decode()]))[4] < "2011-06-01":
        sys.stdout.buffer.write(line + b"\n")
' | gzip -9n > "$to/online_retail_2011-05.csv.gz"
for f in flights.json flights_tumble1h_hubs.csv flights_hop1h15m_ATL_3d.csv retail.json; do
  cp "$from/expected/$f" "$to/expected/$f"
done
# Days before the cut.
awk -F, 'NR == 1 || $1 < "2011-06-01"' "$from/expected/retail_tumble1d_country.csv" > "$to/expected/retail_tumble1d_country.csv"
chmod u+w "$to"/*.gz "$to"/expected/*
