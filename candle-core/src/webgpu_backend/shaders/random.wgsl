// dst[i] = random number p.first + i of the sequence that p.seed names. unit() and angle_cosine() come from random_*.wgsl.
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

fn number(bits: vec4<u32>) -> dst_t {
  if (UNIFORM) {
    // From first() up to second(), which is the greatest number that is left in.
    let x = first() + unit(bits.xz) * width();
    return select(x, second(), x > second());
  }
  // Box-Muller with mean first() and standard deviation second().
  return first() + second() * radius(bits.xz) * angle_cosine(bits.yw);
}

fn element_at(i: u32) -> dst_t {
  let low = p.first_low + i;
  let place = vec2<u32>(low, p.first_high + u32(low < i));
  return number(philox(place, vec2<u32>(p.seed_low, p.seed_high)));
}
