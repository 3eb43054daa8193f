package fsx

import (
	"errors"
	"fmt"
	"os"
)

// MkdirAll makes dir and its missing parents, durably: it syncs every directory above dir, so that a power cut cannot
// take away a directory whose files were synced. Directories above the parent that may not be opened are left out;
// whoever made them is not us.
func MkdirAll(fs FS, dir string) error {
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("fsx: make directory: %w", err)
	}
	first := true
	for p := fs.PathDir(dir); ; p = fs.PathDir(p) {
		if err := fs.SyncDir(p); err != nil && (first || !errors.Is(err, os.ErrPermission)) {
			return fmt.Errorf("fsx: sync directory: %w", err)
		}
		first = false
		if p == fs.PathDir(p) {
			return nil
		}
	}
}
