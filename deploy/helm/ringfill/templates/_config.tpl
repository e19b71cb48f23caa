{{/*
Ports that only the pod itself reaches, and the one for probes.
*/}}
{{- define "ringfill.daemonPort" }}50061{{ end }}
{{- define "ringfill.daemonMetricsPort" }}50064{{ end }}
{{- define "ringfill.envoyAdminPort" }}50062{{ end }}
{{- define "ringfill.healthPort" }}50063{{ end }}

{{- define "ringfill.modelPath" -}}
/models/{{ .Values.model.file }}
{{- end }}

{{- define "ringfill.drainSeconds" -}}
{{- $server := default dict .Values.config.server }}
{{- if hasKey $server "drain_timeout_s" }}{{ ceil $server.drain_timeout_s | int }}{{ else }}30{{ end }}
{{- end }}

{{/* Everything that values.schema.json cannot say: two values that do not go together. */}}
{{- define "ringfill.validate" -}}
{{- $v := .Values }}
{{- $ranks := default dict $v.config.ranks }}
{{- $ring := default dict $v.config.ring }}
{{- if not $v.image.repository }}
{{- fail "image.repository: name the image that you pushed to a registry, such as registry.example.com/ringfill/ringfilld (docs/DEPLOYMENT.md)" }}
{{- end }}
{{- if and (eq $v.model.source "pvc") (not $v.model.pvc.claimName) }}
{{- fail "model.pvc.claimName: name the claim that has the model, or choose another model.source (image, download)" }}
{{- end }}
{{- if eq $v.model.source "image" }}
{{- if not $v.model.image.reference }}
{{- fail "model.image.reference: name the image that has the model" }}
{{- end }}
{{- if or (hasSuffix ":latest" $v.model.image.reference) (not (regexMatch "[:@][^/]+$" $v.model.image.reference)) }}
{{- fail "model.image.reference: give a digest, or a tag other than latest" }}
{{- end }}
{{- if not (include "ringfill.kubeAtLeast" (list . "1.31")) }}
{{- fail (printf "model.source: image volumes need Kubernetes 1.31 or newer, this one is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}
{{- if eq $v.model.source "download" }}
{{- if not $v.model.download.url }}{{ fail "model.download.url: give the URL of the model" }}{{ end }}
{{- if not $v.model.download.sha256 }}{{ fail "model.download.sha256: give the SHA-256 of the model; nothing runs unverified" }}{{ end }}
{{- if contains "/" $v.model.file }}{{ fail "model.file: with model.source download it is a name without folders" }}{{ end }}
{{- end }}
{{- if $v.multinode.enabled }}
{{- if not $v.multinode.secret.name }}
{{- fail "multinode.secret.name: name the Secret that the ranks share" }}
{{- end }}
{{- if gt (int $v.gpu.count) 1 }}
{{- fail "gpu.count: with multinode.enabled a pod is a rank, with one GPU; raise multinode.ranks instead" }}
{{- end }}
{{- if hasKey $ranks "count" }}
{{- fail "config.ranks.count: with multinode.enabled it is multinode.ranks" }}
{{- end }}
{{- if and (hasKey $ring "transport") (ne $ring.transport "processes") }}
{{- fail "config.ring.transport: with multinode.enabled ranks are processes" }}
{{- end }}
{{- else if and (gt (int $v.gpu.count) 0) (hasKey $ranks "count") (ne (int $ranks.count) (int $v.gpu.count)) }}
{{- fail (printf "config.ranks.count: %d ranks, but gpu.count is %d; leave it out, each GPU is a rank" (int $ranks.count) (int $v.gpu.count)) }}
{{- end }}
{{- $least := add (int $v.preStopSeconds) (int (include "ringfill.drainSeconds" .)) 5 }}
{{- if and (gt (int $v.terminationGracePeriodSeconds) 0) (lt (int $v.terminationGracePeriodSeconds) (int $least)) }}
{{- fail (printf "terminationGracePeriodSeconds: %d is too short for preStopSeconds and config.server.drain_timeout_s; give at least %d, or 0" (int $v.terminationGracePeriodSeconds) (int $least)) }}
{{- end }}
{{- $ports := list (int $v.service.port) (int $v.metrics.port) (int $v.multinode.port) }}
{{- range $name := list "daemonPort" "daemonMetricsPort" "envoyAdminPort" "healthPort" }}
{{- $ports = append $ports (include (printf "ringfill.%s" $name) $ | int) }}
{{- end }}
{{- if ne (len $ports) (len (uniq $ports)) }}
{{- fail "service.port, metrics.port and multinode.port must differ from each other and from 50061 to 50064" }}
{{- end }}
{{- range $v.env }}
{{- if hasPrefix "RINGFILL_" .name }}{{ fail (printf "env: %s is the chart's own" .name) }}{{ end }}
{{- end }}
{{- end }}

{{/*
Bytes for KV of ranks on several nodes without GPUs: a quarter of their memory limits. The daemon would take the
limit of its own container, which holds no KV.
*/}}
{{- define "ringfill.kvBytes" -}}
{{- $limit := toString .Values.resources.limits.memory }}
{{- $unit := regexFind "[A-Za-z]*$" $limit }}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 }}
{{- $number := trimSuffix $unit $limit }}
{{- if not (hasKey $units $unit) }}
{{- fail (printf "config.kv.memory_bytes: give it, since resources.limits.memory (%s) is in thousandths" $limit) }}
{{- end }}
{{- $bytes := mulf (float64 $number) (get $units $unit) | int64 }}
{{- if or (le $bytes 0) (gt $bytes 1125899906842624) }}
{{- fail (printf "resources.limits.memory (%s) is no memory of a pod" $limit) }}
{{- end }}
{{- mul (div $bytes 4) (int64 .Values.multinode.ranks) }}
{{- end }}

{{/* The daemon's file, as YAML. */}}
{{- define "ringfill.config" -}}
{{- $v := .Values }}
{{- $config := deepCopy $v.config }}
{{- range $section := list "server" "metrics" "model" "ranks" "kv" "ring" }}
{{- if not (get $config $section) }}{{ $_ := set $config $section dict }}{{ end }}
{{- end }}
{{- if $v.envoy.enabled }}
{{- $_ := set $config.server "listen" (printf "127.0.0.1:%s" (include "ringfill.daemonPort" .)) }}
{{- $_ := set $config.metrics "listen" (printf "127.0.0.1:%s" (include "ringfill.daemonMetricsPort" .)) }}
{{- else }}
{{- $_ := set $config.server "listen" (include "ringfill.listen" (list . $v.service.port)) }}
{{- $_ := set $config.metrics "listen" (include "ringfill.listen" (list . $v.metrics.port)) }}
{{- end }}
{{- if not $v.metrics.enabled }}{{ $_ := set $config.metrics "listen" "" }}{{ end }}
{{- $_ := set $config.model "path" (include "ringfill.modelPath" .) }}
{{- if gt (int $v.gpu.count) 0 }}
{{- $_ := set $config.ranks "backend" "cuda" }}
{{- $_ := set $config.ranks "count" (int $v.gpu.count) }}
{{- else }}
{{- $_ := set $config.ranks "backend" "cpu" }}
{{- if and $v.multinode.enabled (not (hasKey $config.kv "memory_bytes")) }}{{ $_ := set $config.kv "memory_bytes" (include "ringfill.kvBytes" . | int64) }}{{ end }}
{{- end }}
{{- if $v.multinode.enabled }}
{{- $_ := set $config.ranks "count" (int $v.multinode.ranks) }}
{{- $_ := set $config.ring "transport" "processes" }}
{{- $_ := set $config.ring "start_workers" false }}
{{- $_ := set $config.ring "listen" (include "ringfill.listen" (list . $v.multinode.port)) }}
{{- $_ := set $config.ring "secret_file" "/etc/ringfill-secret/secret" }}
{{- if not (hasKey $config.ring "join_timeout_s") }}{{ $_ := set $config.ring "join_timeout_s" 1500 }}{{ end }}
{{- end }}
{{- range $section := keys $config }}
{{- if not (get $config $section) }}{{ $_ := unset $config $section }}{{ end }}
{{- end }}
{{- toYaml $config }}
{{- end }}
