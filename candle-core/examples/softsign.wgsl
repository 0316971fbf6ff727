// The kernel of custom_op.rs: y = x / (1 + |x|).

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> len: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  // There may be more elements than invocations.
  for (var i = id.x; i < len; i += groups.x * 64u) {
    y[i] = x[i] / (1.0 + abs(x[i]));
  }
}
