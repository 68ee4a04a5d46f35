package discovery

import (
	"cmp"
	"fmt"
	"slices"
)

// Defaults for fields of Config that are zero.
const (
	DefaultMaxServicesPerOperation = 64
	DefaultMaxServicesPerUser      = 1_000
	DefaultMaxServices             = 20_000
)

// limits bound what authors can publish, each alone and all together.
type limits struct {
	perOperation int // obeyed where an operation's services are declared
	perUser      int
	all          int
}

// admit returns those of the services that the limits let into the successor of prev, and a problem for each operation
// that has others. Services of prev keep their place; among the rest, and after a restart, the operation that started first
// comes first, then the smaller id, task and name. services is modified; both it and prev are sorted.
func (l limits) admit(prev *Snapshot, services []Service) ([]Service, []Problem) {
	count := make(map[string]int)
	crowded := len(services) > l.all
	for i := range services {
		user := services[i].User
		count[user]++
		crowded = crowded || count[user] > l.perUser
	}
	if !crowded {
		return services, nil
	}
	clear(count)
	var excess overLimit
	all := 0
	for _, i := range byPlace(prev, services) {
		s := &services[i]
		switch {
		case count[s.User] >= l.perUser:
			excess.add(s.OperationID, fmt.Sprintf("its user publishes more than %d services", l.perUser))
		case all >= l.all:
			excess.add(s.OperationID, fmt.Sprintf("there are more than %d services", l.all))
		default:
			count[s.User]++
			all++
			continue
		}
		s.OperationID = "" // out
	}
	return slices.DeleteFunc(services, func(s Service) bool { return s.OperationID == "" }), excess.problems()
}

// byPlace is the order in which services get a place: the numbers of the services.
func byPlace(prev *Snapshot, services []Service) []int {
	there := make([]bool, len(services))
	before := prev.Services()
	order := make([]int, len(services))
	for i := range services {
		order[i] = i
		for len(before) > 0 && compareServices(before[0], &services[i]) < 0 {
			before = before[1:]
		}
		there[i] = len(before) > 0 && compareServices(before[0], &services[i]) == 0
	}
	rank := func(i int) int {
		if there[i] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(rank(i), rank(j)), services[i].StartTime.Compare(services[j].StartTime), cmp.Compare(i, j))
	})
	return order
}

// overLimit counts services that found no place, by operation and reason: one problem for many of them.
type overLimit map[Problem]int

func (o *overLimit) add(operationID, reason string) {
	if *o == nil {
		*o = make(overLimit)
	}
	(*o)[Problem{Kind: OverLimit, OperationID: operationID, Reason: reason}]++
}

func (o overLimit) problems() (problems []Problem) {
	for p, n := range o {
		p.Reason += fmt.Sprintf("; %d of this operation are left out", n)
		problems = append(problems, p)
	}
	return problems
}
