// SPDX-License-Identifier: Apache-2.0

// Program kubevirt_reader looks a device up as KubeVirt's virt-launcher does.
//
// Arguments: the directory of the metadata files, the claim's name in the VMI's spec.resourceClaims,
// the name of the ResourceClaim (empty for a claim from a template), and the request. It prints the
// PCI address that KubeVirt would pass to the guest, or "mdev" and the UUID.
package main

import (
	"fmt"
	"os"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/kubevirt/pkg/dra"
)

func main() {
	directory, name, claim, request := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	reference := v1.VirtualMachineInstanceResourceClaim{Name: name}
	if claim != "" {
		reference.ResourceClaimName = &claim
	} else {
		template := "template"
		reference.ResourceClaimTemplateName = &template
	}
	claims := []v1.VirtualMachineInstanceResourceClaim{reference}
	// KubeVirt takes a device for a mediated one if it has a UUID of one
	// (pkg/virt-launcher/virtwrap/device/hostdevice/dra).
	if found, err := dra.GetMDevUUIDForClaim(directory, claims, name, request); err == nil {
		fmt.Println("mdev", found)
		return
	}
	found, err := dra.GetPCIAddressForClaim(directory, claims, name, request)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(found)
}
