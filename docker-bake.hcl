# SPDX-License-Identifier: Apache-2.0
# Builds the images of all packages, for both architectures, from one build context:
#   lab image context context
#   REGISTRY=registry.example.com docker buildx bake --push
# Wheels and nvidia-cdi-hook are made for the architecture of the machine that makes the context, so a machine
# builds its own: PLATFORM=linux/arm64. The workflow `release` joins the two in an index.
variable "REGISTRY" { default = "docker.io" }
variable "BASE" { default = "python:3.12-slim" }
variable "PLATFORM" { default = BAKE_LOCAL_PLATFORM }
variable "VERSION" { default = "dev" }
variable "REVISION" { default = "unknown" }
variable "SOURCE" { default = "unpublished" }
variable "SOURCE_DATE_EPOCH" { default = "0" }

group "default" { targets = ["image"] }

target "image" {
  name = package
  matrix = {
    package = ["nvdra-gpu-plugin", "nvdra-cd-plugin", "nvdra-cd-controller", "nvdra-imex-daemon", "nvdra-webhook"]
  }
  context    = "context"
  dockerfile = "../packages/${package}/Dockerfile"
  platforms  = [PLATFORM]
  tags       = ["${REGISTRY}/nvdra/${package}:${VERSION}"]
  args = {
    BASE              = BASE
    VERSION           = VERSION
    REVISION          = REVISION
    SOURCE            = SOURCE
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
}
