// Sums of a workgroup's invocations, in an order that is always the same.
var<workgroup> group_sums: array<vec2<f32>, SIZE>;

fn sum_of_group(local: u32, value: vec2<f32>) -> vec2<f32> {
  group_sums[local] = value;
  for (var span = SIZE / 2u; span > 0u; span /= 2u) {
    workgroupBarrier();
    if local < span {
      group_sums[local] += group_sums[local + span];
    }
  }
  workgroupBarrier();
  return group_sums[0];
}
