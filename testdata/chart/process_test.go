package charttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// product builds the binary once.
var product = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "charttest")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", dir, "./cmd/task-proxy")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", &buildError{string(out)}
	}
	return filepath.Join(dir, "task-proxy"), nil
})

type buildError struct{ out string }

func (e *buildError) Error() string { return "cmd/task-proxy does not build:\n" + e.out }

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := product(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// mounted makes the files that a container finds, in a directory that stands for its root.
func mounted(t *testing.T, pod corev1.PodSpec) (root string) {
	t.Helper()
	root = t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"x.example.net"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	put := func(volume, name string, content []byte) {
		for _, m := range pod.Containers[0].VolumeMounts {
			if m.Name == volume {
				path := filepath.Join(root, m.MountPath, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
		t.Fatalf("volume %s is not mounted", volume)
	}
	for _, v := range pod.Volumes {
		switch v.Name {
		case "token":
			name := "robot-task-proxy-token" // as kubectl names the key after the documented file
			if len(v.Secret.Items) > 0 {
				name = v.Secret.Items[0].Path
			}
			put(v.Name, name, []byte("token\n"))
		case "cert":
			put(v.Name, corev1.TLSCertKey, certPEM)
			put(v.Name, corev1.TLSPrivateKeyKey, keyPEM)
		case "ca":
			if v.ConfigMap != nil {
				put(v.Name, v.ConfigMap.Items[0].Path, certPEM)
			} else {
				put(v.Name, v.Secret.Items[0].Path, certPEM)
			}
		}
	}
	return root
}

// effective runs the container's process with --dry-run: flags, their values, and where each is from.
func effective(t *testing.T, pod corev1.PodSpec) map[string][2]string {
	t.Helper()
	binary, err := product()
	if err != nil {
		t.Fatal(err)
	}
	root := mounted(t, pod)
	args := slices.Clone(pod.Containers[0].Args)
	for i, arg := range args {
		flag, value, _ := strings.Cut(arg, "=")
		if strings.HasPrefix(value, "/etc/") {
			arg = flag + "=" + root + value
			if _, err := os.Stat(root + value); err != nil {
				t.Errorf("%s: no volume has it", args[i])
			}
		}
		args[i] = strings.ReplaceAll(arg, "$$(", "$(") // as Kubernetes does
	}
	process := exec.CommandContext(t.Context(), binary, append(args, "--dry-run")...)
	for _, e := range pod.Containers[0].Env {
		process.Env = append(process.Env, e.Name+"="+e.Value)
	}
	out, err := process.CombinedOutput()
	if err != nil {
		t.Fatalf("the process does not accept what the chart gives it: %v\n%s", err, out)
	}
	settings := map[string][2]string{}
	for line := range strings.Lines(string(out)) {
		setting, source, ok := strings.Cut(strings.TrimSpace(line), " # ")
		name, value, ok2 := strings.Cut(strings.TrimSpace(setting), "=")
		if !ok || !ok2 {
			t.Fatalf("a line of --dry-run is %q", line)
		}
		settings[strings.TrimPrefix(name, "--")] = [2]string{strings.ReplaceAll(value, root, ""), source}
	}
	return settings
}

// What the chart says the process accepts, for every values file, and the pod's grace period covers the drain.
func TestProcessAccepts(t *testing.T) {
	each(t, func(t *testing.T, _ string, rendered map[string]string) {
		all := objects(t, rendered)
		pod := only[*appsv1.Deployment](t, all).Spec.Template.Spec
		settings := effective(t, pod)
		if check := only[*corev1.Pod](t, all).Spec; !slices.Equal(check.Containers[0].Args[1:], pod.Containers[0].Args[1:]) {
			t.Errorf("helm test checks other flags than are served:\n%q\n%q", check.Containers[0].Args, pod.Containers[0].Args)
		}
		var drain time.Duration
		for _, name := range []string{"shutdown-delay", "shutdown-timeout"} {
			d, err := time.ParseDuration(settings[name][0])
			if err != nil {
				t.Fatal(err)
			}
			drain += d
		}
		if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < drain+5*time.Second {
			t.Errorf("pods are killed after %s, and drain for %s", grace, drain)
		}
		startup, err := time.ParseDuration(settings["startup-timeout"][0])
		if err != nil {
			t.Fatal(err)
		}
		if p := pod.Containers[0].StartupProbe; time.Duration(p.PeriodSeconds*p.FailureThreshold)*time.Second < startup+20*time.Second {
			t.Errorf("pods are killed after %d probes, and wait for the cluster for %s", p.FailureThreshold, startup)
		}
	})
}

// The values of earlier charts mean what they meant.
func TestOldValuesCount(t *testing.T) {
	want := map[string]map[string]string{
		"v0.1-readme": {"table-path": "//home/task_proxies", "tls-cert-file": "/etc/certs/tls.crt", "yt-token-path": "/etc/yt"},
		"v0.1-values": {"table-path": "//home/task_proxies", "discovery-period": "60s", "auth-cookie-name": "yc_session"},
		"v0.2-values": {"table-path": "//sys/task_proxies/services", "discovery-period": "60s", "yt-proxy": "http-proxies-lb.yt.svc.cluster.local"},
		"v0.3-docs":   {"tls-key-file": "/etc/certs/tls.key", "base-domain": "my-cluster.ytsaurus.example.net"},
		"v0.4-values": {"connect-timeout": "2s", "idle-timeout": "300s"},
		"v0.5-values": {"base-domain": "my-cluster.ytsaurus.example.net"},
		"siblings":    {"yt-token-path": "/etc/yt/robot-task-proxy-token", "spyt-ports": "", "debug-listen": "", "base-domain": `"my-cluster.example.net, old-name.example.net"`},
	}
	notes := map[string][]string{
		"v0.1-readme": {"proxy.resources:", "server.resources:"},
		"v0.1-values": {"proxy.image:", "server.image:"},
		"v0.4-values": {"timeouts.routeTimeoutSeconds:", "auth.cache:", "monitoring.alerts.authInfrastructureFailuresPerMinuteThreshold:"},
		"v0.5-values": {"persistence:", "server.logging:", "proxy.accessLog:"},
	}
	kind := map[string]corev1.ServiceType{"v0.1-readme": "LoadBalancer", "v0.3-docs": "LoadBalancer", "v0.2-values": "NodePort", "siblings": "ClusterIP", "gateway": "ClusterIP"}
	port := map[string]int32{"v0.1-readme": 443, "v0.3-docs": 443, "v0.2-values": 80}
	replicas := map[string]int32{"v0.1-readme": 2, "v0.1-values": 1, "v0.2-values": 1, "siblings": 3, "minimal": 2}
	certificate := map[string]string{"v0.1-readme": "yt-domain-cert", "v0.2-values": "", "siblings": "services-cert", "tls": "services-cert"}
	token := map[string]string{"minimal": "task-proxy-token", "siblings": "all-tokens", "everything": "robot"}
	seen := 0
	each(t, func(t *testing.T, name string, rendered map[string]string) {
		all := objects(t, rendered)
		deployment := only[*appsv1.Deployment](t, all)
		if want[name] != nil {
			seen++
			settings := effective(t, deployment.Spec.Template.Spec)
			for flag, value := range want[name] {
				if settings[flag][0] != value {
					t.Errorf("--%s=%s, want %s", flag, settings[flag][0], value)
				}
			}
		}
		for _, line := range notes[name] {
			if !strings.Contains(rendered["templates/NOTES.txt"], "\n  "+line) {
				t.Errorf("the notes do not say that %s has no effect:\n%s", line, rendered["templates/NOTES.txt"])
			}
		}
		if service, ok := all["Service "+release].(*corev1.Service); ok {
			if k := kind[name]; k != "" && service.Spec.Type != k {
				t.Errorf("the Service is a %s, want %s", service.Spec.Type, k)
			}
			if p := port[name]; p != 0 && service.Spec.Ports[0].Port != p {
				t.Errorf("the Service has port %d, want %d", service.Spec.Ports[0].Port, p)
			}
		}
		secrets := map[string]string{}
		for _, v := range deployment.Spec.Template.Spec.Volumes {
			if v.Secret != nil {
				secrets[v.Name] = v.Secret.SecretName
			}
		}
		if s, ok := certificate[name]; ok && secrets["cert"] != s {
			t.Errorf("the certificate is from the Secret %q, want %q", secrets["cert"], s)
		}
		if s, ok := token[name]; ok && secrets["token"] != s {
			t.Errorf("the token is from the Secret %q, want %q", secrets["token"], s)
		}
		if r, ok := replicas[name]; ok && *deployment.Spec.Replicas != r {
			t.Errorf("%d replicas, want %d", *deployment.Spec.Replicas, r)
		}
	})
	if seen != len(want) {
		t.Errorf("%d of %d values files were there", seen, len(want))
	}
}

// The chart's defaults are the process's own, so that a value that is not given means the same everywhere.
func TestDefaultsAgree(t *testing.T) {
	binary, err := product()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, "--dry-run", "--yt-proxy=http-proxies-lb.yt.svc.cluster.local", "--yt-token-path=/etc/yt", "--base-domain=my-cluster.example.net").Output()
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := render(loaded(t, short), readValues(t, "values/minimal.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	chart := effective(t, only[*appsv1.Deployment](t, objects(t, rendered)).Spec.Template.Spec)
	other := map[string]string{"log-format": "nobody's terminal", "dry-run": "given by the test"}
	for line := range strings.Lines(string(out)) {
		setting, _, _ := strings.Cut(strings.TrimSpace(line), " # ")
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(setting), "--"), "=")
		got := chart[name][0]
		if d, err := time.ParseDuration(value); err == nil {
			if g, err := time.ParseDuration(got); err == nil && g == d {
				continue
			}
		}
		if got != value && other[name] == "" {
			t.Errorf("--%s is %q by itself and %q by the chart", name, value, got)
		}
	}
}

// Every flag can be reached by a value, and the list by which extraArgs are judged has them all.
func TestFlagsAreKnown(t *testing.T) {
	c := loaded(t, short)
	c.Templates = append(c.Templates, &chart.File{Name: "templates/flags.txt", Data: []byte(`{{ include "task-proxy.flags" . }}`)})
	rendered, err := render(c, readValues(t, "values/everything.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var known map[string]string
	if err := yaml.UnmarshalStrict([]byte(rendered["templates/flags.txt"]), &known); err != nil {
		t.Fatal(err)
	}
	settings := effective(t, only[*appsv1.Deployment](t, objects(t, rendered)).Spec.Template.Spec)
	for name, s := range settings {
		switch {
		case name == "dry-run":
		case known[name] == "":
			t.Errorf("--%s is no flag that the chart knows: make a value for it, or say in the list of flags that there is none", name)
		case s[1] != "flag":
			t.Errorf("--%s is from %q in everything.yaml", name, s[1])
		}
	}
	for name := range known {
		if _, ok := settings[name]; !ok && name != "namespace" && name != "discovery-period-seconds" { // older names
			t.Errorf("the chart knows --%s, and serve does not", name)
		}
	}
}

// helm upgrade --reuse-values runs the templates without the chart's own values.
func TestReusedValues(t *testing.T) {
	c := loaded(t, short)
	c.Values = readValues(t, "values/v0.2-values.yaml")
	_, err := render(c, nil)
	if err == nil || !strings.Contains(err.Error(), "--reset-then-reuse-values") {
		t.Errorf("says %v", err)
	}
}

// The values in the install guide: the first block, alone and with each of the others.
func TestInstallGuide(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join(chartDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, step, _ := strings.Cut(string(guide), "\n## 3. values.yaml\n")
	step, _, ok := strings.Cut(step, "\n## 4. ")
	if !ok {
		t.Fatal("the guide has no steps 3 and 4")
	}
	var blocks []string
	for _, part := range strings.Split(step, "\n```yaml\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		if !strings.HasPrefix(block, "spec:") { // a Gateway's
			blocks = append(blocks, block)
		}
	}
	if len(blocks) != 4 {
		t.Fatalf("the guide has %d blocks of values in step 3, want 4: %q", len(blocks), blocks)
	}
	for i := range blocks {
		text := blocks[0]
		if i > 0 {
			text += "\n" + blocks[i]
		}
		var values map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		rendered, err := render(loaded(t, short), values)
		if err != nil {
			t.Errorf("%v\n%s", err, text)
			continue
		}
		effective(t, only[*appsv1.Deployment](t, objects(t, rendered)).Spec.Template.Spec)
	}
}
