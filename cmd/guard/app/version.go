package app

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/metacontroller-solo/solo/pkg/version"
)

func versionCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(stdout, version.String())
			return err
		},
	}
}
