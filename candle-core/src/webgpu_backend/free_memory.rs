//! Free memory of a GPU, as its driver reports it.

/// Free bytes of the largest device-local heap: the driver's budget for this program less its usage.
#[cfg(any(windows, target_os = "linux", target_os = "android"))]
pub(super) fn of_driver(device: &wgpu::Device) -> Option<u64> {
    use ash::{ext, vk};
    // SAFETY: nothing of the device is destroyed, or used outside of this function.
    let device = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let (card, instance) = (
        device.raw_physical_device(),
        device.shared_instance().raw_instance(),
    );
    // SAFETY: the card belongs to the instance.
    let extensions = unsafe { instance.enumerate_device_extension_properties(card) }.ok()?;
    let says = |found: &vk::ExtensionProperties| {
        found.extension_name_as_c_str() == Ok(ext::memory_budget::NAME)
    };
    if !extensions.iter().any(says) {
        return None;
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: the card has the extension of the chained structure, and wgpu requires at least Vulkan 1.1 of an instance.
    unsafe { instance.get_physical_device_memory_properties2(card, &mut memory) };
    let memory = memory.memory_properties;
    let free = |(i, heap): (usize, &vk::MemoryHeap)| {
        let own = heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
        own.then(|| budget.heap_budget[i].saturating_sub(budget.heap_usage[i]))
    };
    let heaps = memory.memory_heaps_as_slice().iter().enumerate();
    heaps.filter_map(free).max()
}

/// Unknown on Metal and in a browser.
#[cfg(not(any(windows, target_os = "linux", target_os = "android")))]
pub(super) fn of_driver(_: &wgpu::Device) -> Option<u64> {
    None
}
