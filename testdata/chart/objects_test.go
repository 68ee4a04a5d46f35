package charttest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	promv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// vmServiceScrape and vmRule are as much of VictoriaMetrics' types as the chart uses: their fields are those of the
// Prometheus operator's.
type (
	vmServiceScrape struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			JobLabel          string                   `json:"jobLabel"`
			NamespaceSelector promv1.NamespaceSelector `json:"namespaceSelector"`
			Selector          metav1.LabelSelector     `json:"selector"`
			Endpoints         []struct {
				Port     string `json:"port"`
				Path     string `json:"path"`
				Interval string `json:"interval"`
			} `json:"endpoints"`
		} `json:"spec"`
	}
	vmRule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              promv1.PrometheusRuleSpec `json:"spec"`
	}
)

// kinds are all that the chart may render.
var kinds = map[string]func() metav1.Object{
	"apps/v1 Deployment":                                   func() metav1.Object { return new(appsv1.Deployment) },
	"v1 Service":                                           func() metav1.Object { return new(corev1.Service) },
	"v1 ServiceAccount":                                    func() metav1.Object { return new(corev1.ServiceAccount) },
	"v1 ConfigMap":                                         func() metav1.Object { return new(corev1.ConfigMap) },
	"v1 Pod":                                               func() metav1.Object { return new(corev1.Pod) },
	"policy/v1 PodDisruptionBudget":                        func() metav1.Object { return new(policyv1.PodDisruptionBudget) },
	"autoscaling/v2 HorizontalPodAutoscaler":               func() metav1.Object { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"networking.k8s.io/v1 NetworkPolicy":                   func() metav1.Object { return new(networkingv1.NetworkPolicy) },
	"networking.k8s.io/v1 Ingress":                         func() metav1.Object { return new(networkingv1.Ingress) },
	"gateway.networking.k8s.io/v1 HTTPRoute":               func() metav1.Object { return new(gatewayv1.HTTPRoute) },
	"gateway.networking.k8s.io/v1 GRPCRoute":               func() metav1.Object { return new(gatewayv1.GRPCRoute) },
	"monitoring.coreos.com/v1 ServiceMonitor":              func() metav1.Object { return new(promv1.ServiceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule":              func() metav1.Object { return new(promv1.PrometheusRule) },
	"operator.victoriametrics.com/v1beta1 VMServiceScrape": func() metav1.Object { return new(vmServiceScrape) },
	"operator.victoriametrics.com/v1beta1 VMRule":          func() metav1.Object { return new(vmRule) },
}

// objects decodes all that was rendered, by "Kind name". A field that the API does not know, one that is there twice, and an object of an unknown
// kind fail the test.
func objects(t *testing.T, rendered map[string]string) map[string]metav1.Object {
	t.Helper()
	all := map[string]metav1.Object{}
	for template, text := range rendered {
		if strings.HasSuffix(template, ".txt") {
			continue
		}
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			data, err := yaml.YAMLToJSONStrict([]byte(document))
			if err != nil {
				t.Fatalf("%s: %v\n%s", template, err, document)
			}
			if string(data) == "null" {
				continue
			}
			var kind metav1.TypeMeta
			if err := json.Unmarshal(data, &kind); err != nil {
				t.Fatalf("%s: %v", template, err)
			}
			fresh, ok := kinds[kind.APIVersion+" "+kind.Kind]
			if !ok {
				t.Fatalf("%s renders %s %s, which this test does not know", template, kind.APIVersion, kind.Kind)
			}
			object := fresh()
			strict, err := kjson.UnmarshalStrict(data, object)
			if err != nil {
				t.Fatalf("%s: %v\n%s", template, err, document)
			}
			for _, err := range strict {
				t.Errorf("%s: %v", template, err)
			}
			name := kind.Kind + " " + object.GetName()
			if all[name] != nil {
				t.Errorf("two objects are %s", name)
			}
			if object.GetNamespace() != namespace {
				t.Errorf("%s is in namespace %q", name, object.GetNamespace())
			}
			all[name] = object
		}
	}
	return all
}

// of are the objects of one type.
func of[T metav1.Object](all map[string]metav1.Object) (found []T) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if o, ok := all[name].(T); ok {
			found = append(found, o)
		}
	}
	return found
}

func only[T metav1.Object](t *testing.T, all map[string]metav1.Object) T {
	t.Helper()
	found := of[T](all)
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T, want 1", len(found), *new(T))
	}
	return found[0]
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// Everything decodes, and what refers to something else refers to what is there.
func TestObjectsFit(t *testing.T) {
	each(t, func(t *testing.T, _ string, rendered map[string]string) {
		all := objects(t, rendered)
		deployment := only[*appsv1.Deployment](t, all)
		pod := deployment.Spec.Template
		for _, o := range all {
			if o.GetLabels()["app.kubernetes.io/instance"] != release || o.GetLabels()["app.kubernetes.io/managed-by"] != "Helm" {
				t.Errorf("%s lacks labels: %v", o.GetName(), o.GetLabels())
			}
		}
		if !selects(deployment.Spec.Selector.MatchLabels, pod.Labels) {
			t.Errorf("the Deployment selects %v, its pods are %v", deployment.Spec.Selector, pod.Labels)
		}
		ports := map[string]int32{}
		for _, p := range pod.Spec.Containers[0].Ports {
			ports[p.Name] = p.ContainerPort
		}
		services := map[string]*corev1.Service{}
		for _, s := range of[*corev1.Service](all) {
			services[s.Name] = s
			if !selects(s.Spec.Selector, pod.Labels) {
				t.Errorf("Service %s selects %v", s.Name, s.Spec.Selector)
			}
			for _, p := range s.Spec.Ports {
				if ports[p.TargetPort.StrVal] == 0 {
					t.Errorf("Service %s leads to port %q, which the pods do not have", s.Name, p.TargetPort.StrVal)
				}
				if p.TargetPort.StrVal == "admin" && s.Spec.ClusterIP != corev1.ClusterIPNone {
					t.Errorf("Service %s shows the admin port", s.Name)
				}
			}
		}
		backend := func(name string, port int32) {
			t.Helper()
			s := services[name]
			if s == nil || !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port }) {
				t.Errorf("a route leads to Service %s port %d, which is not there", name, port)
			}
		}
		for _, r := range of[*gatewayv1.HTTPRoute](all) {
			ref := r.Spec.Rules[0].BackendRefs[0]
			backend(string(ref.Name), *ref.Port)
		}
		for _, r := range of[*gatewayv1.GRPCRoute](all) {
			ref := r.Spec.Rules[0].BackendRefs[0]
			backend(string(ref.Name), *ref.Port)
		}
		for _, i := range of[*networkingv1.Ingress](all) {
			for _, rule := range i.Spec.Rules {
				ref := rule.HTTP.Paths[0].Backend.Service
				if s := services[ref.Name]; s == nil || s.Spec.Ports[0].Name != ref.Port.Name {
					t.Errorf("the Ingress leads to %v, which is not there", ref)
				}
			}
		}
		for _, b := range of[*policyv1.PodDisruptionBudget](all) {
			if !selects(b.Spec.Selector.MatchLabels, pod.Labels) {
				t.Errorf("the disruption budget selects %v", b.Spec.Selector)
			}
		}
		for _, p := range of[*networkingv1.NetworkPolicy](all) {
			if !selects(p.Spec.PodSelector.MatchLabels, pod.Labels) {
				t.Errorf("the network policy selects %v", p.Spec.PodSelector)
			}
			for _, rule := range p.Spec.Ingress {
				for _, port := range rule.Ports {
					if port.Port.IntVal == ports["admin"] && len(rule.From) == 0 {
						t.Error("the network policy lets everybody to the admin port")
					}
				}
			}
		}
		for _, h := range of[*autoscalingv2.HorizontalPodAutoscaler](all) {
			if h.Spec.ScaleTargetRef.Name != deployment.Name || deployment.Spec.Replicas != nil {
				t.Errorf("the autoscaler scales %s, the Deployment is %s with %v replicas", h.Spec.ScaleTargetRef.Name, deployment.Name, deployment.Spec.Replicas)
			}
		}
		scrapes := func(selector map[string]string, port, path string) {
			t.Helper()
			for _, s := range services {
				if selects(selector, s.Labels) {
					if s.Spec.Ports[0].Name != port || path != "/metrics" {
						t.Errorf("port %s and path %s are scraped", port, path)
					}
					return
				}
			}
			t.Errorf("no Service has the labels %v that are scraped", selector)
		}
		for _, m := range of[*promv1.ServiceMonitor](all) {
			scrapes(m.Spec.Selector.MatchLabels, m.Spec.Endpoints[0].Port, m.Spec.Endpoints[0].Path)
		}
		for _, m := range of[*vmServiceScrape](all) {
			scrapes(m.Spec.Selector.MatchLabels, m.Spec.Endpoints[0].Port, m.Spec.Endpoints[0].Path)
		}
		accounts := of[*corev1.ServiceAccount](all)
		if len(accounts) > 0 && accounts[0].Name != pod.Spec.ServiceAccountName {
			t.Errorf("pods run as %s, the account is %s", pod.Spec.ServiceAccountName, accounts[0].Name)
		}
		guarded(t, pod.Spec)
		check := only[*corev1.Pod](t, all)
		guarded(t, check.Spec)
		if selects(deployment.Spec.Selector.MatchLabels, check.Labels) {
			t.Error("the pod of helm test is taken for one of the Deployment's")
		}
	})
}

// guarded is what holds for all pods, with whatever values the tests have.
func guarded(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	no := func(b *bool) bool { return b != nil && !*b }
	yes := func(b *bool) bool { return b != nil && *b }
	c := pod.Containers[0]
	switch {
	case len(pod.Containers) != 1 || len(pod.InitContainers) != 0:
		t.Error("not one container")
	case !no(pod.AutomountServiceAccountToken):
		t.Error("pods get a token for Kubernetes")
	case !no(pod.EnableServiceLinks):
		t.Error("Services' variables are taken for flags")
	case !yes(pod.SecurityContext.RunAsNonRoot) || pod.SecurityContext.RunAsUser != nil && *pod.SecurityContext.RunAsUser == 0 || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Errorf("security context of the pod: %+v", pod.SecurityContext)
	case !no(c.SecurityContext.AllowPrivilegeEscalation) || !yes(c.SecurityContext.ReadOnlyRootFilesystem) || c.SecurityContext.Capabilities.Drop[0] != "ALL":
		t.Errorf("security context of the container: %+v", c.SecurityContext)
	case c.Command != nil:
		t.Error("the image knows its binary")
	case c.Lifecycle != nil:
		t.Error("an image without a shell has nothing to run in a hook, and the process drains by itself")
	}
	var volumes, mounts []string
	for _, v := range pod.Volumes {
		volumes = append(volumes, v.Name)
	}
	for _, m := range c.VolumeMounts {
		mounts = append(mounts, m.Name)
		if m.SubPath != "" {
			t.Errorf("%s is mounted by a subPath: changes do not arrive", m.Name)
		}
	}
	slices.Sort(volumes)
	slices.Sort(mounts)
	if !slices.Equal(volumes, mounts) {
		t.Errorf("volumes %v, mounted %v", volumes, mounts)
	}
}

// A Deployment's selector cannot be changed, and an object of the two-container chart cannot get ours: these are for ever.
func TestNamesAreForEver(t *testing.T) {
	each(t, func(t *testing.T, name string, rendered map[string]string) {
		deployment := only[*appsv1.Deployment](t, objects(t, rendered))
		want := map[string]string{
			"app.kubernetes.io/name": "task-proxy", "app.kubernetes.io/instance": release, "app.kubernetes.io/component": "task-proxy",
		}
		if got := deployment.Spec.Selector.MatchLabels; !maps.Equal(got, want) {
			t.Errorf("the selector is %v, and was %v before", got, want)
		}
		if deployment.Name == release {
			t.Errorf("the Deployment has the name that the two-container chart's has, whose selector is another one: helm upgrade would fail")
		}
		if name == "everything" { // its fullnameOverride says otherwise
			return
		}
		if _, ok := objects(t, rendered)["Service "+release]; !ok {
			t.Errorf("no Service %s: clients inside the cluster do not find it any more", release)
		}
	})
}

// Another chart can have this one twice, for two clusters, each under a condition: neither's objects find the other's pods.
func TestTwiceInAnotherChart(t *testing.T) {
	parent := &chart.Chart{Metadata: &chart.Metadata{APIVersion: chart.APIVersionV2, Name: "both", Version: "0.1.0"}}
	values := map[string]any{}
	for _, alias := range []string{"one", "two"} {
		c := loaded(t, short)
		c.Metadata.Name = alias
		parent.AddDependency(c)
		values[alias] = map[string]any{"baseDomain": alias + ".example.net", "fullnameOverride": alias, "enabled": true, "monitoring": map[string]any{"enabled": true}}
	}
	rendered, err := render(parent, values)
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, rendered)
	deployments := of[*appsv1.Deployment](all)
	if len(deployments) != 2 {
		t.Fatalf("%d Deployments", len(deployments))
	}
	pods := deployments[1].Spec.Template.Labels
	if selector := deployments[0].Spec.Selector.MatchLabels; selects(selector, pods) {
		t.Errorf("%v finds the other's pods: %v", selector, pods)
	}
	for _, s := range of[*corev1.Service](all) {
		if mine := strings.HasPrefix(s.Name, "two"); selects(s.Spec.Selector, pods) != mine {
			t.Errorf("Service %s selects %v, pods of two are %v", s.Name, s.Spec.Selector, pods)
		}
	}
	for _, m := range of[*promv1.ServiceMonitor](all) {
		for _, s := range of[*corev1.Service](all) {
			if selects(m.Spec.Selector.MatchLabels, s.Labels) != (s.Name == m.Name+"-metrics") {
				t.Errorf("ServiceMonitor %s and Service %s", m.Name, s.Name)
			}
		}
	}
}

// The files of dashboard and alert rules arrive as they are: those of the tests, and the chart's own.
func TestFilesArrive(t *testing.T) {
	for name, files := range map[string]map[string]string{"short": short, "own": nil} {
		t.Run(name, func(t *testing.T) {
			c := loaded(t, files)
			rendered, err := render(c, map[string]any{"baseDomain": "x.example.net", "monitoring": map[string]any{
				"enabled": true, "dashboard": map[string]any{"enabled": true},
			}})
			if err != nil {
				t.Fatal(err)
			}
			filesArrive(t, c.Files, objects(t, rendered))
		})
	}
}

func filesArrive(t *testing.T, files []*chart.File, all map[string]metav1.Object) {
	t.Helper()
	for _, f := range files {
		switch f.Name {
		case "files/dashboard.json":
			got := only[*corev1.ConfigMap](t, all).Data["task-proxy.json"]
			if got != strings.TrimSpace(string(f.Data))+"\n" || !json.Valid([]byte(got)) {
				t.Errorf("the dashboard is not the file, or no JSON:\n%.300s", got)
			}
		case "files/alerts.yaml":
			var want promv1.PrometheusRuleSpec
			if err := yaml.UnmarshalStrict(f.Data, &want); err != nil {
				t.Fatal(err)
			}
			got, _ := json.Marshal(only[*promv1.PrometheusRule](t, all).Spec)
			if w, _ := json.Marshal(want); string(got) != string(w) {
				t.Errorf("the rules are not those of the file:\n%s\n%s", got, w)
			}
		}
	}
}
