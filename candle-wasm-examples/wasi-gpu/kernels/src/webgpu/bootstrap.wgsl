// Indices drawn with replacement: PCG-RXS-M-XS-32 of the index and the seed.

struct Params {
  count: u32,
  seed: u32,
  max: u32,
}

@group(0) @binding(0) var<storage, read_write> indices: array<u32>;
@group(0) @binding(1) var<uniform> p: Params;

// Redraws, at most, as on the CPU.
const REDRAWS = 16u;

fn pcg(v: u32) -> u32 {
  let state = v * 747796405u + 2891336453u;
  let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
  return (word >> 22u) ^ word;
}

// The upper half of a product.
fn upper(a: u32, b: u32) -> u32 {
  let a0 = a & 0xffffu;
  let a1 = a >> 16u;
  let b0 = b & 0xffffu;
  let b1 = b >> 16u;
  let middle = a1 * b0 + ((a0 * b0) >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  return a1 * b1 + (middle >> 16u) + (other >> 16u);
}

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let i = flat(group, groups) * SIZE + local;
  if i >= p.count {
    return;
  }
  let surplus = (0u - p.max) % p.max;
  var x = pcg(i + pcg(p.seed));
  for (var redraw = 0u; redraw < REDRAWS && x * p.max < surplus; redraw++) {
    x = pcg(x);
  }
  indices[i] = upper(x, p.max);
}
