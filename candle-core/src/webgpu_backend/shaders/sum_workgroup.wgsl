// Sums and maxima over a workgroup of WG invocations, a power of two, through workgroup memory only.

// The index of an invocation in its workgroup. The workgroup's own number is not included: a structure with a member that differs between
// invocations counts as non-uniform as a whole, and browsers then reject barriers after a return that depends on it.
struct Invocation {
  @builtin(local_invocation_index) local: u32,
}

const_assert 0u == (WG & (WG - 1u));
var<workgroup> parts: array<f32, WG * COUNT>;

// Sums each of COUNT values over the workgroup; total(i) then gives the sums.
fn reduce(values: array<f32, COUNT>, invocation: Invocation) {
  var sums = values;
  for (var i = 0u; i < COUNT; i++) {
    parts[invocation.local * COUNT + i] = sums[i];
  }
  for (var half = WG / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (invocation.local < half) {
      for (var i = 0u; i < COUNT; i++) {
        parts[invocation.local * COUNT + i] += parts[(invocation.local + half) * COUNT + i];
      }
    }
  }
  workgroupBarrier();
}

fn total(i: u32) -> f32 {
  return parts[i];
}

// The maximum of one value over the workgroup.
fn workgroup_max(value: f32, invocation: Invocation) -> f32 {
  parts[invocation.local * COUNT] = value;
  for (var half = WG / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (invocation.local < half) {
      let mine = invocation.local * COUNT;
      parts[mine] = max(parts[mine], parts[(invocation.local + half) * COUNT]);
    }
  }
  workgroupBarrier();
  let result = parts[0];
  workgroupBarrier();
  return result;
}
