package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/demo"
)

func (a *app) demoCmd() *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use: "demo", Short: "Run the main job on real flight records, and check every answer", Args: cobra.NoArgs,
		Long: `Demo starts a node of its own on free ports in a temporary directory, applies the example modules,
sends it 228,738 real flight records and an online shop's invoices, shows the derived topics filling, and
compares what comes out with known answers. Its exit status is 1 if a check fails.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = a.out
			err := demo.Run(cmd.Context(), o)
			if errors.Is(err, demo.ErrChecks) {
				return fail("E2007", exitFailed, "the demo's answers are not the expected ones")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&o.Stay, "stay", false, "keep the node running afterwards, until Ctrl-C")
	cmd.Flags().StringVar(&o.Dir, "dir", "", "data directory (default: a temporary one)")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "seed of the shuffled run")
	return cmd
}
