{{/*
What values.schema.json cannot say: values that are missing, that contradict each other, or that the chart sets itself. All that is
wrong comes in one message.
*/}}
{{- define "task-proxy.checks" -}}
{{- $v := .Values -}}
{{- $s := include "task-proxy.settings" . | fromYaml -}}
{{- $bad := list -}}

{{- if not $v.baseDomain }}
{{- $bad = append $bad "baseDomain is required: the domain under which services get their addresses, such as my-cluster.example.net" }}
{{- end }}
{{- if not $s.tokenSecret }}
{{- $bad = append $bad "tokenSecretRef is required: the name of the Secret with the robot's token, such as task-proxy-token" }}
{{- end }}
{{- if and (kindIs "map" $v.image) (not $v.image.repository) }}
{{- $bad = append $bad "image.repository is required: where your nodes get the image from, such as registry.example.net/task-proxy" }}
{{- end }}
{{- $name := include "task-proxy.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- $bad = append $bad (printf "the release is called %s, which a Service cannot be (small letters, digits and -, a letter first): set fullnameOverride" $name) }}
{{- end }}

{{- if and (not (kindIs "invalid" $v.replicaCount)) (ne (int $v.replicas) 2) (ne (int $v.replicas) (int $v.replicaCount)) }}
{{- $bad = append $bad (printf "replicas is %d and replicaCount is %d: give replicas only" (int $v.replicas) (int $v.replicaCount)) }}
{{- end }}
{{- if and $v.refreshPeriodSeconds (ne (int $v.discoveryPeriodSeconds) 10) (ne (int $v.discoveryPeriodSeconds) (int $v.refreshPeriodSeconds)) }}
{{- $bad = append $bad (printf "discoveryPeriodSeconds is %d and refreshPeriodSeconds is %d: give discoveryPeriodSeconds only" (int $v.discoveryPeriodSeconds) (int $v.refreshPeriodSeconds)) }}
{{- end }}
{{- if and $v.tablePath (ne $v.dirPath "//sys/task_proxies") (ne $v.tablePath (printf "%s/services" $v.dirPath)) }}
{{- $bad = append $bad (printf "dirPath is %s and tablePath is %s, which is not %s/services: give one of them" $v.dirPath $v.tablePath $v.dirPath) }}
{{- end }}
{{- if and $v.tls.secretName $v.tls.certSecretRef (ne $v.tls.secretName $v.tls.certSecretRef) }}
{{- $bad = append $bad (printf "tls.certSecretRef is %s and tls.secretName is %s: give tls.certSecretRef only" $v.tls.certSecretRef $v.tls.secretName) }}
{{- end }}
{{- if and $v.tls.enabled (eq $v.publicScheme "http") }}
{{- $bad = append $bad "publicScheme is http and tls.enabled is true: with TLS on the proxy's own port the scheme is https" }}
{{- end }}
{{- if and $v.tls.enabled $v.service.grpcPort }}
{{- $bad = append $bad "service.grpcPort is for h2c, and tls.enabled is true: the service's port has HTTP/2 over TLS, use that" }}
{{- end }}
{{- if and $v.service.grpcPort (eq (int $v.service.grpcPort) (int (include "task-proxy.servicePort" .))) }}
{{- $bad = append $bad (printf "service.grpcPort is %d, which is the service's port already: give another one, such as 9090" (int $v.service.grpcPort)) }}
{{- end }}
{{- $type := include "task-proxy.serviceType" . }}
{{- range $key := list "nodePort" "externalTrafficPolicy" }}
{{- if and (index $v.service $key) (eq $type "ClusterIP") }}
{{- $bad = append $bad (printf "service.%s needs service.type NodePort or LoadBalancer, and it is ClusterIP" $key) }}
{{- end }}
{{- end }}
{{- range $key := list "loadBalancerClass" "loadBalancerSourceRanges" }}
{{- if and (index $v.service $key) (ne $type "LoadBalancer") }}
{{- $bad = append $bad (printf "service.%s needs service.type LoadBalancer, and it is %s" $key $type) }}
{{- end }}
{{- end }}
{{- $trusted := splitList "," (include "task-proxy.joined" $v.trustedProxies | replace " " "") }}
{{- range splitList "," (include "task-proxy.joined" $v.spyt.restAllowFrom | replace " " "") }}
{{- if and . (has . $trusted) }}
{{- $bad = append $bad (printf "spyt.restAllowFrom has %s, and so has trustedProxies: everybody who comes through that proxy would run code as the owners of Spark clusters" .) }}
{{- end }}
{{- end }}

{{- $drain := add (int $v.shutdown.delaySeconds) (int $v.shutdown.timeoutSeconds) | int }}
{{- if le (int $s.gracePeriodSeconds) $drain }}
{{- $bad = append $bad (printf "terminationGracePeriodSeconds is %d: it must be more than shutdown.delaySeconds and shutdown.timeoutSeconds together, %d, or pods are killed while they drain" (int $s.gracePeriodSeconds) $drain) }}
{{- end }}
{{- with $v.podDisruptionBudget }}
{{- if and .enabled (not (kindIs "invalid" .minAvailable)) (not (kindIs "invalid" .maxUnavailable)) }}
{{- $bad = append $bad "podDisruptionBudget has minAvailable and maxUnavailable: give one of them" }}
{{- end }}
{{- end }}
{{- with $v.podDisruptionBudget }}
{{- $most := $v.autoscaling.enabled | ternary $v.autoscaling.minReplicas $s.replicas | int }}
{{- if and .enabled (or (regexMatch "^0+%?$" (toString .maxUnavailable)) (eq (toString .minAvailable) "100%")) }}
{{- $bad = append $bad "podDisruptionBudget lets no pod be evicted, so no node with one of them could be drained: give maxUnavailable 1 or more, or minAvailable less than 100%" }}
{{- end }}
{{- if and .enabled (regexMatch "^[0-9]+$" (toString .minAvailable)) $most (ge (int .minAvailable) $most) }}
{{- $bad = append $bad (printf "podDisruptionBudget.minAvailable is %d of %d pods: no node with one of them could be drained, give less" (int .minAvailable) $most) }}
{{- end }}
{{- end }}
{{- with $v.strategy.rollingUpdate }}
{{- if and (eq $v.strategy.type "RollingUpdate") (regexMatch "^0+%?$" (toString .maxUnavailable)) (regexMatch "^0+%?$" (toString .maxSurge)) }}
{{- $bad = append $bad "strategy.rollingUpdate has maxUnavailable 0 and maxSurge 0: no pod could be replaced, give one of them" }}
{{- end }}
{{- end }}
{{- if and $v.autoscaling.enabled (not (dig "requests" "cpu" "" ($v.resources | default dict))) }}
{{- $bad = append $bad "autoscaling.enabled is true, and resources.requests.cpu is empty: that is what autoscaling.targetCPUUtilizationPercentage is a part of" }}
{{- end }}
{{- if and $v.autoscaling.enabled (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
{{- $bad = append $bad (printf "autoscaling.maxReplicas is %d, less than autoscaling.minReplicas, %d" (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
{{- end }}

{{- if $v.gateway.enabled }}
{{- if not (or $v.gateway.http.enabled $v.gateway.grpc.enabled) }}
{{- $bad = append $bad "gateway.enabled is true, and gateway.http.enabled and gateway.grpc.enabled are false: there is no route to make" }}
{{- end }}
{{- range $kind := list "http" "grpc" }}
{{- $route := index $v.gateway $kind }}
{{- if and $route.enabled (not $route.parentRefs) }}
{{- $bad = append $bad (printf "gateway.%s.parentRefs is empty: name the Gateway and its listener, or set gateway.%s.enabled to false" $kind $kind) }}
{{- end }}
{{- end }}
{{- if and $v.gateway.http.enabled $v.gateway.grpc.enabled }}
{{- range $v.gateway.http.parentRefs }}
{{- if has . $v.gateway.grpc.parentRefs }}
{{- $bad = append $bad (printf "gateway.http and gateway.grpc both have the listener %s of %s: the same host cannot have an HTTPRoute and a GRPCRoute on one listener, give gRPC its own" (.sectionName | default "(any)") .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- $selector := include "task-proxy.selectorLabels" . | fromYaml }}
{{- range $key := keys $v.podLabels | sortAlpha }}
{{- if hasKey $selector $key }}
{{- $bad = append $bad (printf "podLabels has %s, by which the chart's objects find their pods: choose another name" $key) }}
{{- end }}
{{- end }}
{{- $own := list "token" "cert" "ca" }}
{{- range $v.extraVolumes }}
{{- if has .name $own }}
{{- $bad = append $bad (printf "extraVolumes has the name %s, which is the chart's own: choose another one" .name) }}
{{- end }}
{{- end }}
{{- range $v.extraVolumeMounts }}
{{- if has (trimSuffix "/" .mountPath) (list "/etc/yt" "/etc/certs" "/etc/yt-ca") }}
{{- $bad = append $bad (printf "extraVolumeMounts has the path %s, which is the chart's own: choose another one" .mountPath) }}
{{- end }}
{{- end }}

{{- /* The flags that the chart sets, and by which value. */}}
{{- $flags := include "task-proxy.flags" . | fromYaml }}
{{- range $arg := $v.extraArgs }}
{{- $flag := regexReplaceAll "^--?([^=]*).*$" $arg "${1}" }}
{{- if and (hasPrefix "-" $arg) (hasKey $flags $flag) }}
{{- $bad = append $bad (printf "extraArgs has %s, which the chart sets itself: use %s" $arg (index $flags $flag)) }}
{{- end }}
{{- end }}
{{- range $v.extraEnv }}
{{- if hasPrefix "TASK_PROXY_" .name }}
{{- $flag := .name | trimPrefix "TASK_PROXY_" | lower | replace "_" "-" }}
{{- if hasKey $flags $flag }}
{{- $bad = append $bad (printf "extraEnv has %s, which the chart sets itself by a flag, and flags count first: use %s" .name (index $flags $flag)) }}
{{- end }}
{{- end }}
{{- end }}

{{- if $bad }}
{{- printf "wrong values:\n  %s" (join "\n  " $bad) | fail }}
{{- end }}
{{- end -}}
