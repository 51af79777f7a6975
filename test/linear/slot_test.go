package linear

import (
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	claim := func(id string, outcome Outcome, from, to int64) Operation {
		return Operation{ID: id, Outcome: outcome, Call: from, Return: to}
	}
	refused := func(id, holder string, from, to int64) Operation {
		return Operation{ID: id, Outcome: Refused, Holder: holder, Call: from, Return: to}
	}
	tests := map[string]struct {
		history []Operation
		want    bool
	}{
		"nothing":                         {nil, true},
		"one":                             {[]Operation{claim("a", Granted, 1, 2)}, true},
		"a loser told the winner":         {[]Operation{claim("a", Granted, 1, 4), refused("b", "a", 2, 3)}, true},
		"two winners":                     {[]Operation{claim("a", Granted, 1, 4), claim("b", Granted, 2, 3)}, false},
		"two winners, released between":   {[]Operation{claim("a", Granted, 1, 2), claim("a", Released, 3, 6), claim("b", Granted, 4, 5)}, true},
		"two winners, released too late":  {[]Operation{claim("a", Granted, 1, 2), claim("b", Granted, 3, 4), claim("a", Released, 5, 6)}, false},
		"the same one again":              {[]Operation{claim("a", Granted, 1, 2), claim("a", Granted, 3, 4)}, true},
		"refused before anybody won":      {[]Operation{refused("b", "a", 1, 2), claim("a", Granted, 3, 4)}, false},
		"refused by one who never won":    {[]Operation{claim("a", Granted, 1, 2), refused("b", "c", 3, 4)}, false},
		"refused after the release":       {[]Operation{claim("a", Granted, 1, 2), claim("a", Released, 3, 4), refused("b", "a", 5, 6)}, false},
		"refused in favour of itself":     {[]Operation{claim("a", Granted, 1, 2), refused("a", "a", 3, 4)}, false},
		"a lost answer was a grant":       {[]Operation{claim("a", Unknown, 1, 2), refused("b", "a", 3, 4)}, true},
		"a lost answer was none":          {[]Operation{claim("a", Unknown, 1, 2), claim("b", Granted, 3, 4)}, true},
		"a lost answer cannot be both":    {[]Operation{claim("a", Unknown, 1, 2), refused("c", "a", 3, 4), claim("b", Granted, 5, 6)}, false},
		"left, and free":                  {[]Operation{claim("a", Granted, 1, 2), claim("a", Left, 3, 4), claim("b", Granted, 5, 6)}, true},
		"left, and claimed again":         {[]Operation{claim("a", Granted, 1, 2), claim("a", Left, 3, 6), claim("a", Granted, 4, 5), refused("b", "a", 7, 8)}, true},
		"free, and nobody got it":         {[]Operation{claim("a", Vacant, 1, 2)}, true},
		"called free though it was taken": {[]Operation{claim("a", Granted, 1, 2), claim("b", Vacant, 3, 4)}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := Check(test.history, time.Minute); (err == nil) != test.want {
				t.Fatalf("got %v", err)
			}
		})
	}
}
