// Package examples holds the example modules and their data, so that the command can show them
// anywhere. Each folder answers one question; README.md beside it says which.
package examples

import "embed"

// Files are the modules, the data cuts and the expected answers.
//
//go:embed flights/*.hr retail/*.hr data/*.gz data/expected
var Files embed.FS
