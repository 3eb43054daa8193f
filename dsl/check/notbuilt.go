package check

// notBuiltCodes number the parts of the language that are in the grammar and come later. A feature
// that is not in the list is E0999.
var notBuiltCodes = map[string]string{
	"join": "E0901", "lookup": "E0902", "match": "E0903", "top": "E0905", "dedup": "E0906",
	"route": "E0907", "check": "E0908", "union": "E0910",
	"bare": "E0913", "test": "E0914", "wasm": "E0915", "from-as": "E0916",
	"session-max": "E0920", "window-count": "E0922", "window-emit": "E0928", "window-aggregate": "E0929",
	"format": "E0930",
}

// notBuilt reports one use of a part of the language that is not built yet. what is how the user wrote
// it, does what it would do.
func (c *checker) notBuilt(feature, what string, at span, does string) *finding {
	code, ok := notBuiltCodes[feature]
	switch {
	case ok:
	case len(feature) > 8 && feature[:8] == "closure-":
		code = "E0941"
	default:
		code = "E0999"
	}
	f := c.err(code, at, "%s is not built yet", what)
	if does != "" {
		f.because("%s: in the grammar, not in this version", does)
	} else {
		f.because("it is in the grammar, not in this version")
	}
	f.fix("leave it out for now")
	return f
}
