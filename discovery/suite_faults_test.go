package discovery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/ytclient/ytlocal"
)

// fault reads a line of a suite's file; suiteWorld tells what can be in it.
func (w *suiteWorld) fault(words []string, options map[string]string) error {
	if slices.Equal(words, []string{"scheduler", "restarts"}) {
		w.schedulerRestarts = true
		return nil
	}
	f := ytlocal.Fault{Command: strings.TrimPrefix(words[0], "any")}
	for name, value := range options {
		switch name {
		case "if":
			f.Match = func(c ytlocal.Call) bool {
				b, err := yson.MarshalFormat(c.Params, yson.FormatText)
				return err == nil && strings.Contains(string(b), value)
			}
		case "times":
			n, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			f.Times = n
		default:
			return fmt.Errorf("no such option: %s", name)
		}
	}
	if err := misbehave(&f, words[1], words[2:]); err != nil {
		return err
	}
	w.faults = append(w.faults, f)
	return nil
}

// misbehave makes the fault do what the words say.
func misbehave(f *ytlocal.Fault, what string, words []string) error {
	argument := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	number := func() (n int, err error) { return strconv.Atoi(argument(0)) }
	switch what {
	case "code":
		n, err := number()
		f.Error = &yterrors.Error{Code: yterrors.ErrorCode(n), Message: "it was asked to fail"}
		if len(words) > 1 && err == nil {
			f.Status, err = strconv.Atoi(words[1])
		}
		return err
	case "status":
		n, err := number()
		body := argument(1)
		f.Status, f.Body = n, &body
		return err
	case "body":
		body := repeated(argument(0))
		f.Body = &body
	case "cut":
		cuts := map[string]ytlocal.Cut{"before": ytlocal.CutBefore, "headers": ytlocal.CutHeaders, "body": ytlocal.CutBody}
		if f.Cut = cuts[argument(0)]; f.Cut == ytlocal.NoCut {
			return errWords
		}
	case "state":
		f.Edit = ytlocal.InState(argument(0))
	case "without":
		if f.Command == "list_jobs" {
			f.Edit = ytlocal.WithoutJobs(words...)
		} else {
			f.Edit = ytlocal.WithoutOperations(words...)
		}
	case "odd":
		var item any
		if err := yson.Unmarshal([]byte(argument(1)), &item); err != nil {
			return err
		}
		f.Edit = ytlocal.OddOperation(argument(0), item)
	case "partial":
		n, err := number()
		if err != nil {
			return err
		}
		f.Edit = ytlocal.PartialJobs(yterrors.ErrorCode(n), words[1:]...)
	case "stale":
		f.Edit = ytlocal.StaleJobs(words...)
	case "moved":
		f.Edit = ytlocal.MovedJobs(map[string]string{argument(0): argument(1)})
	case "ports":
		ports, err := parsePorts(argument(0))
		f.Edit = ytlocal.Ports(ports...)
		return err
	default:
		return fmt.Errorf("no such fault: %s", what)
	}
	return nil
}
