{{/* Flag: the value that sets it. Those that are not here can be given under extraArgs. */}}
{{- define "task-proxy.flags" -}}
yt-proxy: ytProxy
namespace: ytProxy
yt-token-path: tokenSecretRef
yt-ca-file: caBundle
base-domain: baseDomain
listen: service (the pod's own port is always 8080)
tls-cert-file: tls
tls-key-file: tls
max-connections: limits.connections
admin-listen: service (the pod's admin port is always 9102)
debug-listen: debug.enabled
admin-hosts: adminHosts
dir-path: dirPath
table-path: tablePath
discovery-period: discoveryPeriodSeconds
discovery-period-seconds: discoveryPeriodSeconds
discovery-concurrency: discovery.concurrency
jobs-refresh-period: discovery.jobsRefreshPeriodSeconds
stale-limit: discovery.staleLimitSeconds
max-services-per-operation: limits.servicesPerOperation
max-services-per-user: limits.servicesPerUser
max-services: limits.services
spyt-rest: spyt.rest
spyt-rest-permission: spyt.restPermission
spyt-rest-allow-from: spyt.restAllowFrom
spyt-ports: spyt.ports
auth-enabled: auth.enabled
auth-cookie-name: auth.cookieName
auth-stale-limit: auth.staleLimitSeconds
login-url: auth.loginURL
frame-ancestors: frameAncestors
forward-credentials-to: auth.forwardCredentialsTo
trusted-proxies: trustedProxies
public-scheme: publicScheme
connect-timeout: timeouts.connectTimeoutSeconds
idle-timeout: timeouts.streamIdleTimeoutSeconds
drain-timeout: timeouts.drainTimeoutSeconds
startup-timeout: timeouts.startupTimeoutSeconds
shutdown-delay: shutdown.delaySeconds
shutdown-timeout: shutdown.timeoutSeconds
log-format: log.format
log-level: log.level
{{- end -}}

{{/* All flags of serve, without the command. */}}
{{- define "task-proxy.args" -}}
{{- $v := .Values -}}
{{- $s := include "task-proxy.settings" . | fromYaml -}}
{{- $token := empty $s.tokenKey | ternary "/etc/yt" (printf "/etc/yt/%s" $s.tokenKey) -}}
{{- $args := list
  (printf "--yt-proxy=%s" $s.ytProxy)
  (printf "--yt-token-path=%s" $token)
  (printf "--base-domain=%s" (include "task-proxy.joined" $v.baseDomain))
  "--listen=:8080"
  "--admin-listen=:9102"
  (printf "--debug-listen=%s" (ternary "127.0.0.1:9103" "" $v.debug.enabled))
  (printf "--dir-path=%s" $v.dirPath)
  (printf "--discovery-period=%ds" (int $s.discoveryPeriodSeconds))
  (printf "--discovery-concurrency=%d" (int $v.discovery.concurrency))
  (printf "--jobs-refresh-period=%ds" (int $v.discovery.jobsRefreshPeriodSeconds))
  (printf "--stale-limit=%ds" (int $v.discovery.staleLimitSeconds))
  (printf "--max-connections=%d" (int $v.limits.connections))
  (printf "--max-services-per-operation=%d" (int $v.limits.servicesPerOperation))
  (printf "--max-services-per-user=%d" (int $v.limits.servicesPerUser))
  (printf "--max-services=%d" (int $v.limits.services))
  (printf "--spyt-rest=%s" $v.spyt.rest)
  (printf "--spyt-rest-permission=%s" $v.spyt.restPermission)
  (printf "--spyt-ports=%s" ($v.spyt.ports | default ""))
  (printf "--auth-enabled=%t" $v.auth.enabled)
  (printf "--auth-cookie-name=%s" $v.auth.cookieName)
  (printf "--auth-stale-limit=%ds" (int $v.auth.staleLimitSeconds))
  (printf "--connect-timeout=%ds" (int $v.timeouts.connectTimeoutSeconds))
  (printf "--idle-timeout=%ds" (int $v.timeouts.streamIdleTimeoutSeconds))
  (printf "--drain-timeout=%ds" (int $v.timeouts.drainTimeoutSeconds))
  (printf "--startup-timeout=%ds" (int $v.timeouts.startupTimeoutSeconds))
  (printf "--shutdown-delay=%ds" (int $v.shutdown.delaySeconds))
  (printf "--shutdown-timeout=%ds" (int $v.shutdown.timeoutSeconds))
  (printf "--log-format=%s" $v.log.format)
  (printf "--log-level=%s" $v.log.level)
-}}
{{- range $flag := list
  (list "yt-ca-file" (empty $v.caBundle.name | ternary "" "/etc/yt-ca/ca.crt"))
  (list "tls-cert-file" (ternary "/etc/certs/tls.crt" "" $v.tls.enabled))
  (list "tls-key-file" (ternary "/etc/certs/tls.key" "" $v.tls.enabled))
  (list "table-path" $v.tablePath)
  (list "login-url" $v.auth.loginURL)
  (list "forward-credentials-to" $v.auth.forwardCredentialsTo)
  (list "frame-ancestors" $v.frameAncestors)
  (list "trusted-proxies" $v.trustedProxies)
  (list "public-scheme" $s.publicScheme)
  (list "spyt-rest-allow-from" $v.spyt.restAllowFrom)
  (list "admin-hosts" $v.adminHosts)
-}}
{{- if last $flag }}
{{- $args = append $args (printf "--%s=%s" (first $flag) (include "task-proxy.joined" (last $flag))) }}
{{- end }}
{{- end }}
{{- $quoted := list }}
{{- range $args }}
{{- /* Kubernetes would put a variable's value in the place of $(NAME). */}}
{{- $quoted = append $quoted (replace "$(" "$$(" .) }}
{{- end }}
{{- concat $quoted ($v.extraArgs | default list) | toYaml }}
{{- end -}}

{{- define "task-proxy.env" -}}
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "task-proxy.volumeMounts" -}}
- name: token
  mountPath: /etc/yt
  readOnly: true
{{- if .Values.tls.enabled }}
- name: cert
  mountPath: /etc/certs
  readOnly: true
{{- end }}
{{- if .Values.caBundle.name }}
- name: ca
  mountPath: /etc/yt-ca
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Secrets are readable for the pod's group only (0440). Whole directories are mounted, never a subPath, so that changes arrive. */}}
{{- define "task-proxy.volumes" -}}
{{- $s := include "task-proxy.settings" . | fromYaml -}}
- name: token
  secret:
    secretName: {{ $s.tokenSecret | quote }}
    defaultMode: 288
    {{- with $s.tokenKey }}
    items:
      - key: {{ . | quote }}
        path: {{ . | quote }}
    {{- end }}
{{- if .Values.tls.enabled }}
- name: cert
  secret:
    secretName: {{ $s.certSecret | quote }}
    defaultMode: 288
{{- end }}
{{- with .Values.caBundle }}
{{- if .name }}
- name: ca
  {{- if eq .kind "Secret" }}
  secret:
    secretName: {{ .name | quote }}
    defaultMode: 288
  {{- else }}
  configMap:
    name: {{ .name | quote }}
  {{- end }}
    items:
      - key: {{ .key | default "ca.crt" | quote }}
        path: ca.crt
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What the server's pods and the one of helm test have in common. */}}
{{- define "task-proxy.podSpec" -}}
serviceAccountName: {{ include "task-proxy.serviceAccount" . | quote }}
automountServiceAccountToken: false
# Kubernetes would set TASK_PROXY_PORT and the like for the Service task-proxy, and TASK_PROXY_ variables are flags here.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ kindIs "map" . | ternary .  (dict "name" .) | dig "name" "" | quote }}
  {{- end }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  {{- include "task-proxy.volumes" . | nindent 2 }}
{{- end -}}

{{- define "task-proxy.affinity" -}}
{{- $affinity := .Values.affinity | default dict | deepCopy -}}
{{- if and (not (hasKey $affinity "podAntiAffinity")) (ne .Values.podAntiAffinity "none") }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "task-proxy.selectorLabels" . | fromYaml)) }}
{{- if eq .Values.podAntiAffinity "hard" }}
{{- $_ := set $affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) }}
{{- else }}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) }}
{{- end }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "task-proxy.topologySpread" -}}
topologySpreadConstraints:
{{- with .Values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
{{- else }}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "task-proxy.selectorLabels" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- end -}}
