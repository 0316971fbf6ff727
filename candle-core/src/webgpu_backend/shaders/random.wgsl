// dst[i] = random number p.first + i of the sequence that p.seed names; an invocation writes one word of dst.
//
// Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Each number depends
// on its place in the sequence alone, so grids and adapters do not matter.

fn philox(place: vec2<u32>, seed: vec2<u32>) -> vec4<u32> {
  var counter = vec4<u32>(place, 0u, 0u);
  var key = seed;
  for (var round = 0u; round < 10u; round++) {
    let a = wide_mul(0xd2511f53u, counter.x);
    let b = wide_mul(0xcd9e8d57u, counter.z);
    counter = vec4<u32>(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
    key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  }
  return counter;
}

// The upper 24 bits, which f32 holds exactly, as a number in [0, 1).
fn unit(bits: u32) -> f32 {
  return f32(bits >> 8u) * 0x1p-24f;
}

// From p.a up to p.b, which is the greatest number that is left in.
fn rand_uniform_number(bits: vec4<u32>) -> f32 {
  return min(p.a + unit(bits.x) * p.width, p.b);
}

// Box-Muller with mean p.a and standard deviation p.b. The logarithm's argument is in (0, 1], the angle in [-pi, pi), where
// WGSL promises precision.
fn rand_normal_number(bits: vec4<u32>) -> f32 {
  let radius = sqrt(max(-2.0 * log(unit(bits.x) + 0x1p-24f), 0.0));
  let angle = 6.2831853 * (unit(bits.y) - 0.5);
  return p.a + p.b * radius * cos(angle);
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let word = flat(workgroup, workgroups, local, WG);
  if (word * DST_LANES >= p.len) {
    return;
  }
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let i = word * DST_LANES + lane;
    let place = f_add(vec2<u32>(p.first_low, p.first_high), vec2<u32>(i, 0u));
    lanes[lane] = number(philox(place, vec2<u32>(p.seed_low, p.seed_high)));
  }
  dst_put(word, lanes);
}
