// Sums and maxima over a workgroup of WG invocations, by subgroups of SUBGROUP.

// The index of an invocation in its workgroup. The workgroup's own number is not included: a structure with a member that differs between
// invocations counts as non-uniform as a whole, and browsers then reject barriers after a return that depends on it.
struct Invocation {
  @builtin(local_invocation_index) local: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
}

const PARTS = (WG + SUBGROUP - 1u) / SUBGROUP;
var<workgroup> parts: array<f32, PARTS * COUNT>;

// Sums each of COUNT values over the workgroup; total(i) then gives the sums.
fn reduce(values: array<f32, COUNT>, invocation: Invocation) {
  var sums = values;
  for (var i = 0u; i < COUNT; i++) {
    let sum = subgroupAdd(sums[i]);
    if (invocation.lane == 0u) {
      parts[invocation.subgroup * COUNT + i] = sum;
    }
  }
  workgroupBarrier();
}

fn total(i: u32) -> f32 {
  var sum = 0.0;
  for (var part = 0u; part < PARTS; part++) {
    sum += parts[part * COUNT + i];
  }
  return sum;
}

// The maximum of one value over the workgroup.
fn workgroup_max(value: f32, invocation: Invocation) -> f32 {
  let most = subgroupMax(value);
  if (invocation.lane == 0u) {
    parts[invocation.subgroup * COUNT] = most;
  }
  workgroupBarrier();
  var result = parts[0];
  for (var part = 1u; part < PARTS; part++) {
    result = max(result, parts[part * COUNT]);
  }
  workgroupBarrier();
  return result;
}
