package flight_test

import (
	"testing"

	"github.com/headrace/headrace/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
