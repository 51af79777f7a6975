// Package linear checks that recorded histories of a slot are linearizable:
// that each claim and each release could have happened at one instant between
// its call and its return, all of them one after the other, as on one machine.
//
//	recorded calls and answers ─> Check ─> porcupine, with the slot as a sequential model
package linear

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Outcome is what the caller knows of an operation.
type Outcome int

const (
	// Unknown is a claim whose answer was lost: it may have been granted or not.
	Unknown Outcome = iota
	// Granted is a claim that got the slot.
	Granted
	// Refused is a claim that was refused with the holder's name.
	Refused
	// Vacant is a claim that was refused though the slot was free.
	Vacant
	// Released is a holder that gave the slot back.
	Released
	// Left is a holder that may have given the slot back: its object was deleted,
	// and somebody claimed under its name again, perhaps before.
	Left
)

var outcomes = map[Outcome]string{
	Unknown: "unknown", Granted: "granted", Refused: "refused", Vacant: "refused, free", Released: "released", Left: "left",
}

// Operation is one call, and its answer.
type Operation struct {
	// Client is who called; it is for messages.
	Client int
	// ID is the identity that claims or releases.
	ID      string
	Outcome Outcome
	// Holder is who was named in a refusal.
	Holder string
	// Call and Return are when the operation began and ended, by one clock.
	Call, Return int64
}

// String is for messages.
func (o Operation) String() string {
	text := fmt.Sprintf("[%d, %d] client %d: %s %s", o.Call, o.Return, o.Client, o.ID, outcomes[o.Outcome])
	if o.Holder != "" {
		text += " by " + o.Holder
	}
	return text
}

// shown is how many operations an error lists.
const shown = 40

// Check says whether the history is one of a slot that was free at first. An
// error tells the part that cannot be explained. A history that cannot be
// checked within the limit is an error too.
func Check(history []Operation, limit time.Duration) error {
	operations := make([]porcupine.Operation, 0, len(history))
	for _, operation := range history {
		operations = append(operations, porcupine.Operation{
			ClientId: operation.Client, Input: operation, Call: operation.Call, Return: operation.Return,
		})
	}
	result, info := porcupine.CheckOperationsVerbose(slot.ToModel(), operations, limit)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return fmt.Errorf("the history is not linearizable; it can be explained only up to:\n%s", unexplained(history, info))
	default:
		return fmt.Errorf("cannot check %d operations within %s", len(history), limit)
	}
}

// slot is the sequential model. Its state is the holder, empty while it is free.
var slot = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, _ any) []any {
		holder, operation := state.(string), input.(Operation)
		mine, free := holder == operation.ID, holder == ""
		switch {
		case operation.Outcome == Granted && (free || mine):
			return []any{operation.ID}
		case operation.Outcome == Refused && !mine && holder == operation.Holder:
			return []any{holder}
		case operation.Outcome == Vacant && free:
			return []any{""}
		case operation.Outcome == Released && mine:
			return []any{""}
		case operation.Outcome == Left && mine:
			return []any{"", holder}
		case operation.Outcome == Left:
			return []any{holder}
		case operation.Outcome == Unknown && free:
			return []any{"", operation.ID}
		case operation.Outcome == Unknown:
			return []any{holder}
		default:
			return nil
		}
	},
}

// unexplained lists the last operations of the longest explanation and those
// that were under way when it broke off.
func unexplained(history []Operation, info porcupine.LinearizationInfo) string {
	var longest []int
	for _, partition := range info.PartialLinearizations() {
		for _, linearization := range partition {
			if len(linearization) > len(longest) {
				longest = linearization
			}
		}
	}
	explained := map[int]bool{}
	var lines []string
	for _, i := range longest {
		explained[i] = true
		lines = append(lines, history[i].String())
	}
	lines = lines[max(0, len(lines)-shown/2):]
	lines = append(lines, "but then:")
	rest := make([]Operation, 0, len(history))
	for i, operation := range history {
		if !explained[i] {
			rest = append(rest, operation)
		}
	}
	slices.SortFunc(rest, func(a, b Operation) int { return int(a.Call - b.Call) })
	for _, operation := range rest[:min(len(rest), shown/2)] {
		lines = append(lines, operation.String())
	}
	return strings.Join(lines, "\n")
}
