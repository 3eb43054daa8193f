package broker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/replication"
)

// A ConfigOp says what a change does to a setting.
type ConfigOp uint8

// The operations. Append and Subtract are of settings that are lists.
const (
	SetConfig ConfigOp = iota
	DeleteConfig
	AppendConfig
	SubtractConfig
)

// A ConfigChange changes one setting of a topic. DeleteConfig makes it the default again and has no value.
type ConfigChange struct {
	Name  string
	Op    ConfigOp
	Value string
}

// An Alteration is a change of a topic's settings.
type Alteration struct {
	Changes []ConfigChange
	// Replace makes every setting that is not among the changes the default again.
	Replace bool
	// DryRun judges and changes nothing.
	DryRun bool
	// Preview asks what the change deletes, which may read from the disk.
	Preview bool
}

// Altered is the answer to an Alteration.
type Altered struct {
	Changed []ChangedConfig               `json:"changed"` // by name; empty: everything is as it was asked to be
	Deletes *replication.RetentionPreview `json:"deletes,omitempty"`
}

// A ChangedConfig is one setting before and after.
type ChangedConfig struct {
	Name    string `json:"name"`
	Before  string `json:"before"`
	After   string `json:"after"`
	Default bool   `json:"default"` // After is the default
}

// maxConfigChanges bounds one alteration; there are fewer settings than that.
const maxConfigChanges = 1000

// AlterTopic changes the settings of a topic and returns when they are in force: the next append is judged by them, and
// they survive a restart. Of two alterations at once neither is lost. One that changes nothing writes nothing.
func (b *Broker) AlterTopic(ctx context.Context, name string, a Alteration) (out Altered, err error) {
	t, ok := b.Topic(name)
	switch {
	case !ok:
		return out, Errorf(UnknownTopic, "topic %q does not exist", clip(name))
	case t.Kind == View:
		e := Errorf(TopicIsView, "%q is a view of %q", name, t.View.Source())
		e.Fix = "Change the settings of the view's source."
		return out, e
	case len(a.Changes) > maxConfigChanges:
		return out, Errorf(BadRequest, "%d changes of settings at once, at most %d can be", len(a.Changes), maxConfigChanges)
	}
	if err := checkTwice(a.Changes); err != nil {
		return out, err
	}
	judge := func(row *replication.Topic) (configs map[string]string, set log.PartitionSettings, err error) {
		t := fromRow(row)
		if configs, err = a.apply(t); err != nil {
			return nil, set, err
		}
		if set, err = ParseConfigs(configs); err != nil {
			return nil, set, err
		}
		if set.Compact && b.Columns(t) != nil {
			e := Errorf(InvalidConfig, "cleanup.policy=%s for topic %q, which is of format arrow", configs["cleanup.policy"], name)
			e.Why, e.Fix = "Compaction looks for the latest record of each key, and a columnar batch has no records.", "Use cleanup.policy=delete, or format json."
			return nil, set, e
		}
		out.Changed = changedConfigs(t.Configs, configs)
		return configs, set, nil
	}
	preview := func() error {
		row, ok := b.meta.Catalog().Topic(name)
		if !ok {
			return Errorf(UnknownTopic, "topic %q does not exist", clip(name))
		}
		_, set, err := judge(row)
		if err != nil || !a.Preview {
			return err
		}
		p, err := b.node.PreviewRetention(row, set)
		if err != nil {
			return b.readError(err)
		}
		out.Deletes = &p
		return nil
	}
	if a.DryRun || a.Preview {
		if err := preview(); err != nil || a.DryRun {
			return out, err
		}
	}
	same := errors.New("nothing changes")
	err = b.meta.AlterTopic(ctx, name, func(row *replication.Topic) (replication.TopicPatch, error) {
		configs, set, err := judge(row)
		if err == nil && len(out.Changed) == 0 && set == row.Settings {
			err = same
		}
		return replication.TopicPatch{Configs: configs, Settings: &set}, err
	})
	var refused *Error
	switch {
	case err == nil, errors.Is(err, same):
		return out, nil
	case errors.As(err, &refused):
		return out, refused
	}
	return out, metadataError(err, name)
}

func checkTwice(changes []ConfigChange) error {
	seen := make(map[string]bool, len(changes))
	for i := range changes {
		if seen[changes[i].Name] {
			return Errorf(BadRequest, "the setting %q is named twice", clip(changes[i].Name))
		}
		seen[changes[i].Name] = true
	}
	return nil
}

// fixedOfDerived are the settings of a derived topic that its pipeline relies on.
var fixedOfDerived = []string{"max.message.bytes", "message.timestamp.type"}

// apply returns the settings of t after the changes. What they mean is judged by ParseConfigs.
func (a *Alteration) apply(t *Topic) (map[string]string, error) {
	out := maps.Clone(t.Configs)
	if out == nil || a.Replace {
		out = map[string]string{}
	}
	if a.Replace && t.Kind == Derived {
		for _, name := range fixedOfDerived { // its pipeline has set them, and nobody else can
			if v, ok := t.Configs[name]; ok {
				out[name] = v
			}
		}
	}
	for i := range a.Changes {
		c := &a.Changes[i]
		known, ok := topicConfigs[c.Name]
		if _, stored := t.Configs[c.Name]; !ok && (!stored || c.Op != DeleteConfig) {
			return nil, Errorf(InvalidConfig, "%q is no setting of a topic", clip(c.Name))
		}
		before, set := t.Configs[c.Name]
		if !set {
			before = known.def
		}
		switch c.Op {
		case SetConfig:
			out[c.Name] = c.Value
		case DeleteConfig:
			delete(out, c.Name)
		case AppendConfig, SubtractConfig:
			if known.typ != "list" {
				return nil, Errorf(InvalidConfig, "%s is no list: it can be set, and no value can be added or taken away", c.Name)
			}
			list, values := splitList(before), splitList(c.Value)
			if c.Op == SubtractConfig {
				list = slices.DeleteFunc(list, func(v string) bool { return slices.Contains(values, v) })
			} else {
				for _, v := range values {
					if !slices.Contains(list, v) {
						list = append(list, v)
					}
				}
			}
			out[c.Name] = strings.Join(list, ",")
		default:
			return nil, Errorf(BadRequest, "operation %d on the setting %q is not known", c.Op, clip(c.Name))
		}
		if t.Kind == Derived && slices.Contains(fixedOfDerived, c.Name) && out[c.Name] != t.Configs[c.Name] {
			e := Errorf(SettingFixed, "%s of %q is set by its pipeline", c.Name, t.Name)
			e.Why = "The pipeline " + t.Owner + " writes the topic and relies on this setting."
			return nil, e
		}
	}
	return out, nil
}

// changedConfigs lists the settings whose value or source differs.
func changedConfigs(before, after map[string]string) []ChangedConfig {
	names := map[string]bool{}
	for name := range before {
		names[name] = true
	}
	for name := range after {
		names[name] = true
	}
	out := []ChangedConfig{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, had := before[name]
		is, has := after[name]
		if was == is && had == has {
			continue
		}
		if !had {
			was = topicConfigs[name].def
		}
		if !has {
			is = topicConfigs[name].def
		}
		out = append(out, ChangedConfig{Name: name, Before: was, After: is, Default: !has})
	}
	return out
}

// AlterNode answers who wants to change a setting of the node: they come from the command line, and none can be changed
// while it runs.
func (b *Broker) AlterNode(autoCreate bool, changes []ConfigChange) error {
	if err := checkTwice(changes); err != nil {
		return err
	}
	if len(changes) == 0 {
		return nil
	}
	name := changes[0].Name
	if !slices.ContainsFunc(b.NodeConfigs(autoCreate), func(e ConfigEntry) bool { return e.Name == name }) {
		return Errorf(InvalidConfig, "%q is no setting of a node", clip(name))
	}
	return Errorf(SettingFixed, "%s cannot be changed while the node runs", name)
}

// A LogDir is what a node's data directory holds.
type LogDir struct {
	Path          string
	Total, Usable int64 // bytes of its disk; -1: not known
}

// LogDir describes the node's data directory.
func (b *Broker) LogDir() LogDir {
	d := LogDir{Path: b.node.Dir(), Total: -1, Usable: -1}
	if u, err := b.node.FS().GetDiskUsage(d.Path); err == nil && u.TotalBytes <= 1<<62 {
		d.Total, d.Usable = int64(u.TotalBytes), int64(u.AvailBytes)
	}
	return d
}

// PartitionBytes is about how many bytes of record batches a partition holds. A view holds none.
func (b *Broker) PartitionBytes(t *Topic, partition int32) (int64, error) {
	if t.Kind == View {
		return 0, nil
	}
	p, err := b.partition(t, partition)
	if err != nil {
		return 0, err
	}
	return p.Bytes(), nil
}
