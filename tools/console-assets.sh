#!/bin/bash
# Puts the scripts and styles that the console's pages load into its package, exactly as console/assets locks them.
#
#   tools/console-assets.sh FOLDER      FOLDER: where npm works
#
# They are not in the repository: a minified file cannot be reviewed, and the lock file has its hash.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
target=console/holdmq_console/static/vendor

bash tools/needed.sh node npm
mkdir -p "$folder"
cp console/assets/package.json console/assets/package-lock.json "$folder/"
npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel error

new=$target.new
rm -rf "$new"
mkdir -p "$new"
for name in htmx.org uplot; do
    cp "$folder/node_modules/$name/LICENSE" "$new/$name.LICENSE"
done
cp "$folder/node_modules/htmx.org/dist/htmx.min.js" "$new/"
cp "$folder/node_modules/uplot/dist/uPlot.iife.min.js" "$folder/node_modules/uplot/dist/uPlot.min.css" "$new/"
rm -rf "$target"
mv "$new" "$target"
