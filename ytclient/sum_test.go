package ytclient

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// What a cluster tells of the same annotations has the same sum in both calls and in any order of keys; anything that differs
// has another.
func TestAnnotationsSum(t *testing.T) {
	t.Parallel()
	same := []string{
		`{task_proxy={enabled=%true;tasks_info={}};x=[%nan;1;1u;1.;"1";#;<a=1>{b=2}]}`,
		`{"x"=[%nan;1;1u;1.0;"1";#;<"a"=1>{"b"=2}];task_proxy={tasks_info={};enabled=%true;};}`,
		`<z=1>{x=[%nan;1;1u;1e0;"1";#;<a=1>{b=2}];task_proxy={tasks_info={};enabled=%true}}`,
	}
	others := []string{
		``, `#`, `{}`, `{x=[]}`, `{x={}}`, `{x=#}`, `{x=""}`, `{x=0}`, `{x=0u}`, `{x=0.}`, `{x=%false}`, `{x=%true}`, `{x=<a=1>#}`, `{x=<a=2>#}`, `{x=[#;#]}`, `{x=[[#];#]}`,
		`{x=[[#;#]]}`, `{ab=c}`, `{a=bc}`, `{x=ab;y=c}`, `{x=a;y=bc}`, `{x={y=a}}`, `{x={};y=a}`, `{x=%nan}`, `{x=%inf}`, `{x=-1}`, `{x=18446744073709551615u}`, `{x=[%false;%true]}`, `{x=[%true]}`,
		`{task_proxy={enabled=%true;tasks_info={}};x=[1;%nan;1u;1.;"1";#;<a=1>{b=2}]}`,
	}
	sums := func(annotations string) (listed, got Sum) {
		item := strings.Replace(opItem("1-2-3e803e8-4", t0), "{a=1}", annotations, 1)
		if annotations == "" {
			item = strings.Replace(item, "annotations=", "", 1)
		}
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "get_operation") {
				io.WriteString(w, item)
				return
			}
			io.WriteString(w, listing(false, item))
		})
		l, err := c.ListOperations(t.Context())
		if err != nil || len(l.Operations) != 1 {
			t.Fatalf("%s: %+v, %v", annotations, l, err)
		}
		info, err := c.GetOperation(t.Context(), "1-2-3e803e8-4")
		if err != nil || info.Operation == nil {
			t.Fatalf("%s: %+v, %v", annotations, info, err)
		}
		return l.Operations[0].AnnotationsSum, info.Operation.AnnotationsSum
	}
	seen := map[Sum]string{}
	for _, annotations := range same {
		listed, got := sums(annotations)
		if seen[listed] = annotations; listed != got || len(seen) != 1 {
			t.Errorf("%s: listed %x, got %x; want one sum for all: %v", annotations, listed, got, seen)
		}
	}
	for _, annotations := range others {
		listed, got := sums(annotations)
		none := annotations == "" || annotations == "#"
		if listed != got || (listed == Sum{}) != none {
			t.Errorf("%s: listed %x, got %x", annotations, listed, got)
		}
		if other, ok := seen[listed]; ok && !none {
			t.Errorf("%s has the sum of %s", annotations, other)
		}
		seen[listed] = annotations
	}
}
