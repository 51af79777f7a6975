package claim

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/shard"
)

// maxSlots is the most shards that a status has room for, as in the CRD.
const maxSlots = 64

// takeShard makes want the holder of a shard of its own, or of the one that it
// has already. That the selectors are disjoint was decided on the very status
// that is written under its resourceVersion, so it still holds.
func (s *Slot) takeShard(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, want Want) (decide.Claim, error) {
	taken := policy.DeepCopy()
	slot := slotOf(&taken.Status, want.Identity)
	if slot == nil {
		if len(taken.Status.Slots) >= maxSlots {
			return decide.Claim{}, fmt.Errorf("cannot take a shard: %d are held, which is the most", maxSlots)
		}
		taken.Status.Slots = append(taken.Status.Slots, guardv1alpha1.Slot{Selector: want.Selector})
		slot = &taken.Status.Slots[len(taken.Status.Slots)-1]
	}
	reserve := shardStatus(&taken.Status, slot)
	setHolder(reserve, want.Identity, want.UID, guardv1alpha1.HolderReserved, metav1.NewTime(s.Clock.Now()))
	slot.Holder, slot.ActivePod = *reserve.Holder, nil
	taken.Status.Epoch = reserve.Epoch
	if err := update(ctx, s.Client, taken); err != nil {
		return decide.Claim{}, err
	}
	for _, held := range decide.HolderOf(taken.Status).Shards {
		if held.Identity == want.Identity {
			return decide.Claim{Result: decide.ClaimGranted, Holder: held}, nil
		}
	}
	return decide.Claim{}, fmt.Errorf("cannot find the shard of %s in the status that was written", want.Identity)
}

func slotOf(status *guardv1alpha1.SingletonPolicyStatus, id decide.Identity) *guardv1alpha1.Slot {
	for i := range status.Slots {
		if holder := status.Slots[i].Holder; holder.Namespace == id.Namespace && holder.Name == id.Name {
			return &status.Slots[i]
		}
	}
	return nil
}

// shardStatus is one shard as the status of a policy that had no other, which is
// what the state machine of a slot works on. The epoch is shared by all shards.
func shardStatus(status *guardv1alpha1.SingletonPolicyStatus, slot *guardv1alpha1.Slot) *guardv1alpha1.SingletonPolicyStatus {
	one := &guardv1alpha1.SingletonPolicyStatus{Epoch: status.Epoch, ActivePod: slot.ActivePod}
	if slot.Holder.Phase != "" {
		one.Holder = slot.Holder.DeepCopy()
	}
	return one
}

// shards keeps the slots of mode Sharded: each goes its own way through the
// phases, as the one of mode Strict does. It returns when to look again.
func (r *Reconciler) shards(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature) (time.Duration, error) {
	status := &policy.Status
	found, err := candidates(ctx, r.Client, signature)
	if err != nil {
		return 0, err
	}
	now := metav1.NewTime(r.Clock.Now())
	adoptShards(policy, found, signature, now)

	after := Resync
	var kept []guardv1alpha1.Slot
	for i := range status.Slots {
		slot := status.Slots[i]
		one := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprintf("%s/%s/%s", policy.UID, slot.Holder.Namespace, slot.Holder.Name))}}
		one.Status = *shardStatus(status, &slot)
		seen, err := r.observe(ctx, one, signature)
		if err != nil {
			return 0, err
		}
		if wait := advance(&one.Status, seen, r.Limits, now); wait > 0 {
			after = min(after, wait)
		}
		status.Epoch = max(status.Epoch, one.Status.Epoch)
		if one.Status.Holder == nil {
			continue
		}
		slot.Holder, slot.ActivePod = *one.Status.Holder, one.Status.ActivePod
		kept = append(kept, slot)
	}
	status.Slots = kept
	return after, nil
}

// adoptShards gives shards to StatefulSets that are there already, if their
// selectors are disjoint from those that are held. Of two that overlap neither
// is adopted: a person decides.
func adoptShards(policy *guardv1alpha1.SingletonPolicy, found []appsv1.StatefulSet, signature *identify.Signature, now metav1.Time) {
	excepted := decide.PolicyOf(policy, now.Time)
	status := &policy.Status
	var candidates []guardv1alpha1.Slot
	for i := range found {
		id := identityOf(&found[i])
		if excepted.Excepts(id) || slotOf(status, id) != nil {
			continue
		}
		flags := attempt.FlagsOf(&found[i].Spec.Template.Spec, signature)
		slot := guardv1alpha1.Slot{Selector: flags.Selector}
		one := shardStatus(status, &slot)
		setHolder(one, id, found[i].UID, guardv1alpha1.HolderBound, now)
		slot.Holder = *one.Holder
		candidates = append(candidates, slot)
	}
	for i, slot := range candidates {
		others := append(slices.Clone(status.Slots), candidates[:i]...)
		others = append(others, candidates[i+1:]...)
		apart := !slices.ContainsFunc(others, func(other guardv1alpha1.Slot) bool { return !disjoint(slot.Selector, other.Selector) })
		if _, err := shard.Parse(slot.Selector); err != nil || !apart || len(status.Slots) >= maxSlots {
			continue
		}
		slot.Holder.Epoch = nextEpoch(*status)
		status.Epoch = slot.Holder.Epoch
		status.Slots = append(status.Slots, slot)
	}
}

func disjoint(first, second string) bool {
	a, err := shard.Parse(first)
	if err != nil {
		return false
	}
	b, err := shard.Parse(second)
	return err == nil && shard.Disjoint(a, b)
}
