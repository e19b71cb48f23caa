{{/*
The groups of a file in files/alerts, for this release: each expression looks at its daemons alone, so that several
releases neither write a series twice nor fire for each other, and has the thresholds of metrics.prometheusRule.
*/}}
{{- define "ringfill.rules" -}}
{{- $root := index . 0 }}
{{- $values := $root.Values.metrics.prometheusRule }}
{{- $bound := int64 $values.firstToken.seconds }}
{{- $late := subf 1 $values.firstToken.ratio }}
{{- $pods := printf "{namespace=%q,pod=~%q}" $root.Release.Namespace (printf "%s-[0-9]+" (include "ringfill.fullname" $root)) }}
{{- $rules := $root.Files.Get (index . 1) | fromYaml }}
{{- range $group := $rules.groups }}
{{- range $rule := $group.rules }}
{{- $name := default $rule.record $rule.alert }}
{{- $expr := regexReplaceAll `\b(ringfill[_:][\w:]+|up\b|ALERTS\b)` $rule.expr (printf "${1}%s" $pods) | replace "}{" "," }}
{{- if hasPrefix "ringfill:ttft_late:" $name }}
{{- $expr = replace `"300(` (printf `"%d(` $bound) $expr }}
{{- else if hasPrefix "RingfillFirstToken" $name }}
{{- $expr = replace "* 0.05)" (printf "* %v)" $late) $expr }}
{{- $text := replace "300 s" (printf "%d s" $bound) $rule.annotations.description | replace "allows 5 %" (printf "allows %v %%" (mulf 100 $late)) }}
{{- $_ := set $rule.annotations "description" $text }}
{{- else if eq "RingfillQueueAge" $name }}
{{- $expr = replace "> 600" (printf "> %d" (int64 $values.queueAgeSeconds)) $expr }}
{{- end }}
{{- $_ := set $rule "expr" $expr }}
{{- if and $rule.alert $values.runbookUrl }}
{{- $_ := set $rule.annotations "runbook_url" (replace "docs/RUNBOOKS.md" $values.runbookUrl $rule.annotations.runbook_url) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $rules }}
{{- end }}
